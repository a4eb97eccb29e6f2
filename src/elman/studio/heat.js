// A heat map on a canvas, with labelled columns; a square can be pointed at or reached by arrow keys.

import { h } from "./dom.js";

const NARROW = 2;

// values[row][column]; diverging ones run from -most to most. `onchoose(row)` is a click on a row or
// Enter; `marked` rows and `columns` in `span` are framed.
export function heat({ values, columns, rows, diverging, onpoint, onchoose, label, chosen = null }) {
  // Single characters stand upright above their columns; words are turned.
  const upright = columns.every((column) => [...column].length <= NARROW);
  const marginLeft = Math.min(120, 20 + 7 * Math.max(...rows.map((row) => row.length)));
  const cellHeight = Math.max(9, Math.min(18, 520 / values.length));
  const top = upright ? 26 : 78;
  const height = top + cellHeight * values.length + 4;
  const canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": label });
  const scale = window.devicePixelRatio || 1;
  const most = Math.max(1e-9, ...values.flat().map(Math.abs));
  let cursor = null;
  let [cellWidth, width] = [0, 0];

  // Columns as wide as the page has room for; presentation shows the canvas enlarged.
  function fit(enlarged) {
    const room = Math.min(innerWidth / enlarged, 1248) - marginLeft - (innerWidth < 640 ? 84 : 130);
    cellWidth = Math.max(upright ? 13 : 18, Math.min(80, room / columns.length));
    width = marginLeft + cellWidth * columns.length + (upright ? 6 : 40);
    canvas.style.cssText = `width:${width}px;height:${height}px`;
    canvas.width = width * scale;
    canvas.height = height * scale;
  }

  function draw() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    fit(Number(colour("--enlarged")) || 1);
    const g = canvas.getContext("2d");
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.font = `${upright ? 14 : 13}px ${upright ? colour("--mono") : colour("--sans")}`;
    columns.forEach((column, i) => {
      g.fillStyle = cursor?.[1] === i ? colour("--accent") : colour("--ink");
      g.save();
      if (upright) {
        g.textAlign = "center";
        g.fillText(column, marginLeft + cellWidth * (i + 0.5), top - 8);
      } else {
        g.translate(marginLeft + cellWidth * (i + 0.5) + 3, top - 8);
        g.rotate(-Math.PI / 3.2);
        g.fillText(column.length > 11 ? `${column.slice(0, 10)}…` : column, 0, 0);
      }
      g.restore();
    });
    g.font = `12px ${colour("--sans")}`;
    values.forEach((row, j) => {
      if (cellHeight >= 11 || j % Math.ceil(11 / cellHeight) === 0) {
        g.fillStyle = chosen === j ? colour("--accent") : colour("--soft");
        g.textAlign = "right";
        g.fillText(rows[j], marginLeft - 6, top + cellHeight * (j + 0.5) + 4);
        g.textAlign = "left";
      }
      row.forEach((value, i) => {
        const size = Math.min(1, Math.abs(value) / most);
        g.fillStyle = `rgba(${colour(diverging && value < 0 ? "--cold" : "--hot")}, ${(0.04 + 0.93 * size).toFixed(3)})`;
        g.fillRect(marginLeft + cellWidth * i, top + cellHeight * j, cellWidth - 1, cellHeight - 1);
      });
    });
    if (chosen !== null && chosen >= 0) {
      g.strokeStyle = colour("--accent");
      g.lineWidth = 2;
      g.strokeRect(marginLeft - 1, top + cellHeight * chosen - 1, cellWidth * columns.length + 1, cellHeight + 1);
    }
    if (cursor) {
      g.strokeStyle = colour("--ink");
      g.lineWidth = 1.5;
      g.strokeRect(marginLeft + cellWidth * cursor[1] - 1, top + cellHeight * cursor[0] - 1, cellWidth + 1, cellHeight + 1);
    }
  }

  function point(j, i) {
    if (j < 0 || i < 0 || j >= values.length || i >= columns.length) return;
    cursor = [j, i];
    draw();
    onpoint(j, i, values[j][i]);
  }

  // Row and column under the pointer; the page may show the map larger than it was drawn.
  function place(event) {
    const box = canvas.getBoundingClientRect();
    return [((event.clientY - box.top) * (height / box.height) - top) / cellHeight, ((event.clientX - box.left) * (width / box.width) - marginLeft) / cellWidth].map(Math.floor);
  }

  canvas.addEventListener("pointermove", (event) => {
    point(...place(event));
  });
  canvas.addEventListener("click", (event) => {
    const [row] = place(event);
    if (row >= 0 && row < values.length) choose(row);
  });
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && cursor) choose(cursor[0]);
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    const [j, i] = cursor ?? [0, -1];
    point(j + step[0], i + step[1]);
  });
  function choose(row) {
    if (!onchoose) return;
    chosen = row;
    draw();
    onchoose(row);
  }
  addEventListener("theme", draw);
  draw();
  return h("div", { class: "scroll" }, canvas);
}
