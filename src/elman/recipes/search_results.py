"""Write the results of a search: the recipe of the best trial, the plot, and a summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from elman.base.files import write_text
from elman.recipes import writing
from elman.recipes.search_plot import plot
from elman.recipes.search_space import Tried, importance
from elman.recipes.search_study import Search, best_trial, locked, optuna_module
from elman.runs.run_folder import CONFIG_FILE

if TYPE_CHECKING:
    import optuna

RECIPE_FILE, PLOT_FILE = "recipe.toml", "trials.svg"


def write_results(search: Search, study: optuna.Study | None = None) -> dict[str, Any]:
    """Write the recipe and the plot; return the summary."""
    study = study or search.study()
    states = optuna_module().trial.TrialState
    found = study.get_trials(deepcopy=False)
    done = [trial for trial in found if trial.state == states.COMPLETE]
    summary: dict[str, Any] = {
        "out": str(search.folder),
        "trials": len(done),
        "pruned": sum(trial.state == states.PRUNED for trial in found),
        "failed": sum(trial.user_attrs.get("outcome", "").startswith("failed") for trial in found),
        "steps": search.steps,
    }
    best = best_trial(study)
    if best is None:
        return summary
    first = next((trial for trial in done if _is_first(search, trial)), None)
    tried = _tried(search, found)
    shares = importance(search.space, tried)
    with locked(search.folder):
        write_recipe(search, best)
        write_text(search.folder / PLOT_FILE, plot(search.space, tried, shares))
    summary |= {
        "best": best.number,
        "best_values": search.values(best.params),
        "best_figures": best.user_attrs.get("figures", {}),
        "best_seconds": best.user_attrs.get("seconds"),
        "importance": shares,
        "recipe": str(search.folder / RECIPE_FILE),
        "plot": str(search.folder / PLOT_FILE),
    }
    if first is not None:
        summary["automatic_figures"] = first.user_attrs.get("figures", {})
        summary["automatic_seconds"] = first.user_attrs.get("seconds")
    run_folder = search.folder / "trials" / str(best.number) / "run"
    if (run_folder / CONFIG_FILE).is_file():
        summary["run"] = str(run_folder)
    return summary


def write_recipe(search: Search, best: optuna.trial.FrozenTrial) -> None:
    config = search.config(best.params, {"steps": best.user_attrs["steps"]})
    told = f"found by elman search {search.task}: trial {best.number}"
    told += f", {figure_of(best.user_attrs)}"
    writing.write_recipe(search.folder / RECIPE_FILE, config, told)


def _tried(search: Search, trials: Sequence[optuna.trial.FrozenTrial]) -> list[Tried]:
    """The trials with a result. A pruned one is as far from the median of the finished ones
    as it was at equal tokens, when it was stopped."""
    states = optuna_module().trial.TrialState
    done = [trial for trial in trials if trial.state == states.COMPLETE]
    found = [Tried(search.rounded(trial.params), float(trial.value or 0), True) for trial in done]
    middle = median(tried.result for tried in found)
    for trial in trials:
        rung = max(trial.intermediate_values, default=0)
        then = [t.intermediate_values[rung] for t in done if rung in t.intermediate_values]
        if trial.state == states.PRUNED and then:
            result = middle + trial.intermediate_values[rung] - median(then)
            found.append(Tried(search.rounded(trial.params), result, False))
    return found


def _is_first(search: Search, trial: optuna.trial.FrozenTrial) -> bool:
    return all(trial.params.get(one.name) == one.start for one in search.space)


def figure_of(attributes: Mapping[str, Any]) -> str:
    """The first figure of a trial, in words."""
    for name, value in attributes.get("figures", {}).items():
        return f"{name.replace('valid_', 'validation ').replace('_', ' ')} {value:.4g}"
    return "not validated"
