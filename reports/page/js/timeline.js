// The timeline: a band for each worker, a bar for each case, a bracket for each world. Other cases stay, faintly.

const TIME = { left: 64, head: 22, lane: 34, gap: 8, bar: 20 };

const time = {
  canvas: null,
  from: 0,
  to: 1,
  whole: [0, 1],
  lanes: [],
  indices: new Set(),
  hover: -1,
  drag: null,
  hits: [],
};

/** Group the cases that ran by worker, in the order of time. */
function bands() {
  const ran = [];
  for (let index = 0; index < COUNT; index++)
    if (column.started[index] >= 0 && column.time[index] > 0) ran.push(index);
  ran.sort((left, right) => column.started[left] - column.started[right]);
  const byWorker = grouped(ran, (index) => `${column.run[index]}\n${workerOf(index)}`);
  const names = [...byWorker.keys()].sort((left, right) => left.localeCompare(right, "en", { numeric: true }));
  return names.map((name) => ({ name: name.split("\n")[1] || "main", indices: byWorker.get(name) }));
}

const endOf = (index) => column.started[index] + column.time[index];

/** Return the first and the last moment of these cases. */
function spanOf(indices) {
  let from = Infinity;
  let to = -Infinity;
  for (const index of indices) {
    if (column.started[index] < 0 || !(column.time[index] > 0)) continue;
    from = Math.min(from, column.started[index]);
    to = Math.max(to, endOf(index));
  }
  return from < to ? [from, to] : null;
}

const paints = {
  outcome: (index, ink) => ink[outcomeOf(index)],
  length: (index, ink) => ink.scale[Math.min(5, Math.max(0, Math.floor(Math.log10(secondsOf(index) / 0.003))))],
  law: (index, ink) => ink.many[column.law[index] % ink.many.length],
};

/** Read the colours of the theme. */
function inks() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const ink = {
    text: colour("--ink"),
    faint: colour("--faint"),
    line: colour("--line"),
    panel: colour("--panel"),
    accent: colour("--accent"),
  };
  for (const outcome of OUTCOMES) ink[outcome] = colour(`--o-${outcome}`);
  ink.scale = [0, 1, 2, 3, 4, 5].map((step) => colour(`--scale-${step}`));
  ink.many = [0, 1, 2, 3, 4, 5, 6, 7].map((step) => colour(`--many-${step}`));
  return ink;
}

const MINUTE = 60_000;
const MARKS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 30_000].concat(
  [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200].map((minutes) => minutes * MINUTE),
);

/** Return a round number of milliseconds between the marks of an axis, so that their names have room. */
function tickStep(span, width) {
  const rough = (span * 90) / Math.max(90, width);
  return MARKS.find((mark) => mark >= rough) || rough;
}

const tickName = (milliseconds) => (milliseconds === 0 ? "0" : duration(milliseconds / 1000));

function paint() {
  const { canvas } = time;
  if (!canvas || !canvas.isConnected) return;
  const width = canvas.clientWidth;
  const height = TIME.head + time.lanes.length * (TIME.lane + TIME.gap);
  const dense = devicePixelRatio || 1;
  canvas.width = Math.round(width * dense);
  canvas.height = Math.round(height * dense);
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(dense, dense);
  const ink = inks();
  const x = (moment) => TIME.left + ((width - TIME.left) * (moment - time.from)) / (time.to - time.from);
  paintAxis(pen, ink, x, width, height);
  [canvas.dataset.from, canvas.dataset.to] = [time.from.toFixed(1), time.to.toFixed(1)];
  time.hits = [];
  time.lanes.forEach((lane, position) =>
    paintLane(pen, ink, x, width, lane, TIME.head + position * (TIME.lane + TIME.gap)),
  );
}

function paintAxis(pen, ink, x, width, height) {
  const step = tickStep(time.to - time.from, width - TIME.left);
  pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  pen.fillStyle = ink.faint;
  pen.strokeStyle = ink.line;
  pen.lineWidth = 1;
  pen.textAlign = "left";
  for (let moment = Math.ceil(time.from / step) * step; moment <= time.to; moment += step) {
    const edge = Math.round(x(moment)) + 0.5;
    pen.beginPath();
    pen.moveTo(edge, 14);
    pen.lineTo(edge, height);
    pen.stroke();
    const label = tickName(moment);
    if (edge + 3 + pen.measureText(label).width < width) pen.fillText(label, edge + 3, 11);
  }
}

function paintLane(pen, ink, x, width, lane, top) {
  const paintOf = paints[state.paint] || paints.outcome;
  pen.globalAlpha = 1;
  pen.fillStyle = ink.text;
  pen.textAlign = "right";
  pen.fillText(brief(lane.name, 9), TIME.left - 8, top + 14);
  pen.textAlign = "left";
  let world = null;
  let edge = 0;
  for (const index of lane.indices) {
    if (endOf(index) < time.from) continue;
    if (column.started[index] > time.to) break;
    const from = Math.max(TIME.left, x(column.started[index]));
    const to = Math.min(width, x(endOf(index)));
    const wide = Math.max(1, to - from - (to - from > 3 ? 0.75 : 0));
    pen.globalAlpha = time.indices.has(index) ? 1 : 0.13;
    pen.fillStyle = paintOf(index, ink);
    pen.fillRect(from, top, wide, TIME.bar);
    if (index === time.hover) {
      pen.globalAlpha = 1;
      pen.strokeStyle = ink.text;
      pen.lineWidth = 1.5;
      pen.strokeRect(from - 1, top - 1, wide + 2, TIME.bar + 2);
    }
    time.hits.push([from, to, top, index]);
    // A bracket for each world: tests that share one stand over one.
    if (worldOf(index) !== "") {
      const starts = world !== worldOf(index);
      pen.globalAlpha = 0.75;
      pen.fillStyle = ink.faint;
      const left = starts ? from + (from > TIME.left ? 0.5 : 0) : Math.min(edge, from);
      pen.fillRect(left, top + TIME.bar + 4, Math.max(0.5, to - left - 0.5), 1.5);
      if (starts) pen.fillRect(left, top + TIME.bar + 2, 1, 6);
      world = worldOf(index);
    }
    edge = to;
  }
  pen.globalAlpha = 1;
}

/** Return the case under the pointer; the last drawn lies on top. */
function hit(event) {
  const box = time.canvas.getBoundingClientRect();
  const px = event.clientX - box.left;
  const py = event.clientY - box.top;
  for (let position = time.hits.length - 1; position >= 0; position--) {
    const [from, to, top, index] = time.hits[position];
    if (px >= from - 0.5 && px <= Math.max(to, from + 1) + 0.5 && py >= top - 2 && py <= top + TIME.lane)
      return index;
  }
  return -1;
}

function zoom(factor, around) {
  const [least, most] = time.whole;
  const span = Math.min(most - least, Math.max(1, (time.to - time.from) * factor));
  const share = (around - time.from) / (time.to - time.from);
  time.from = Math.max(least, Math.min(most - span, around - share * span));
  time.to = time.from + span;
  paint();
}

function slide(by) {
  const [least, most] = time.whole;
  const moved = Math.max(least - time.from, Math.min(most - time.to, by));
  time.from += moved;
  time.to += moved;
  paint();
}

const wholeRun = () => (([time.from, time.to] = time.whole), paint());

function canvasEvents(canvas, note) {
  const momentOf = (event) => {
    const box = canvas.getBoundingClientRect();
    return time.from + ((time.to - time.from) * (event.clientX - box.left - TIME.left)) / (box.width - TIME.left);
  };
  canvas.addEventListener(
    "wheel",
    (event) => {
      // Without a key, the wheel scrolls the page.
      if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
      event.preventDefault();
      zoom(Math.exp(Math.sign(event.deltaY || event.deltaX) * 0.25), momentOf(event));
    },
    { passive: false },
  );
  canvas.addEventListener("pointerdown", (event) => {
    time.drag = { x: event.clientX, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (time.drag) {
      const by = time.drag.x - event.clientX;
      if (time.drag.moved || Math.abs(by) > 3) {
        slide((by * (time.to - time.from)) / (canvas.clientWidth - TIME.left));
        time.drag = { x: event.clientX, moved: true };
      }
      return;
    }
    const index = hit(event);
    canvas.classList.toggle("on", index >= 0);
    if (index === time.hover) return;
    time.hover = index;
    note.textContent =
      index < 0
        ? ""
        : [nameOf(index), outcomeOf(index), duration(secondsOf(index)), `world ${worldOf(index) || "none"}`].join(
            " · ",
          );
    paint();
  });
  canvas.addEventListener("pointerup", (event) => {
    const moved = time.drag && time.drag.moved;
    time.drag = null;
    const index = moved ? -1 : hit(event);
    if (index >= 0) openCase(index, "");
  });
  canvas.addEventListener("dblclick", wholeRun);
}

function moveInTime(event) {
  if (document.activeElement !== time.canvas) return false;
  const span = time.to - time.from;
  const acts = {
    ArrowLeft: () => slide(-span / 6),
    ArrowRight: () => slide(span / 6),
    "+": () => zoom(0.7, (time.from + time.to) / 2),
    "=": () => zoom(0.7, (time.from + time.to) / 2),
    "-": () => zoom(1 / 0.7, (time.from + time.to) / 2),
    0: wholeRun,
  };
  if (!(event.key in acts)) return false;
  acts[event.key]();
  return true;
}
