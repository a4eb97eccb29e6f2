"""Language models, one file each, and the table that names them.

The table's entries are the config classes; each config builds its model with `build`.
"""

from elman.base.tables import Table

MODELS: Table = {
    "recurrent": "elman.models.recurrent:RecurrentLMConfig",
    "window": "elman.models.window:WindowLMConfig",
}
