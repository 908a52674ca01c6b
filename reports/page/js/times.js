// The time of the run: the timeline, and sums by each column that has a filter.

const median = (values) => {
  const ordered = [...values].sort((left, right) => left - right);
  return ordered.length ? ordered[Math.floor(ordered.length / 2)] : 0;
};

/** Measure the cost of worlds: the first test of each against later tests. */
function worldFacts(indices) {
  const ran = indices.filter((index) => worldOf(index) !== "" && column.started[index] >= 0);
  const worlds = grouped(ran, (index) => `${column.run[index]}\n${workerOf(index)}\n${worldOf(index)}`);
  const firsts = [];
  const later = [];
  for (const cases of worlds.values()) {
    cases.sort((left, right) => column.started[left] - column.started[right]);
    firsts.push(secondsOf(cases[0]));
    for (const index of cases.slice(1)) later.push(secondsOf(index));
  }
  return {
    worlds: worlds.size,
    tests: ran.length,
    first: median(firsts),
    later: median(later),
    warm: later.length,
  };
}

/** Return how much of the workers' time cases took; the rest is collection, start of worlds, and waiting. */
function busyShare(lanes) {
  let busy = 0;
  let whole = 0;
  for (const lane of lanes) {
    const span = spanOf(lane.indices);
    if (!span) continue;
    whole += span[1] - span[0];
    let free = span[0]; // cases may overlap where the next world is brought up ahead
    for (const index of lane.indices) {
      busy += Math.max(0, endOf(index) - Math.max(free, column.started[index]));
      free = Math.max(free, endOf(index));
    }
  }
  return [busy, whole];
}

const tile = (figureText, label) =>
  el("li", { class: "tile" }, el("b", { text: figureText }), el("span", { text: label }));

function tiles(indices) {
  const sum = indices.reduce((all, index) => all + secondsOf(index), 0);
  const facts = worldFacts(indices);
  const span = spanOf(indices);
  const [busy, whole] = busyShare(time.lanes);
  return el(
    "ul",
    { class: "tiles" },
    tile(duration(sum), `in ${plural(indices.length, CASE)}`),
    span &&
      tile(duration((span[1] - span[0]) / 1000), `from first to last, over ${plural(time.lanes.length, "worker")}`),
    // Conditions, not counts: a count of 0 would stand there as text.
    facts.worlds > 0 && tile(count(facts.worlds), `worlds, ${(facts.tests / facts.worlds).toFixed(1)} tests each`),
    facts.worlds > 0 && tile(duration(facts.first), "median of a world's first test"),
    facts.warm > 0 && tile(duration(facts.later), "median in a world that was up"),
    whole > 0 && tile(percent(busy, whole), "of the workers' time was spent in cases"),
  );
}

/** Sum the time by the values of a column, the most first. */
function ranking(by, indices) {
  const groups = [...grouped(indices, (index) => by.values[index]).values()].map((cases) => ({
    label: by.label(cases[0]),
    address: by.address(cases[0]),
    cases: cases.length,
    sum: cases.reduce((all, index) => all + secondsOf(index), 0),
  }));
  if (groups.length < 2) return null;
  groups.sort((left, right) => right.sum - left.sum);
  const all = groups.reduce((sum, group) => sum + group.sum, 0);
  const rows = groups.slice(0, 12).map((group) => {
    const bar = el("i");
    bar.style.width = `${(100 * group.sum) / groups[0].sum}%`;
    return el(
      "li",
      null,
      el(
        "button",
        { type: "button", on: { click: () => go({ [by.name]: group.address }) }, title: `only ${group.label}` },
        el("span", { class: "name", text: group.label }),
        el("span", { class: "faint", text: `${count(group.cases)} × ${duration(group.sum / group.cases)}` }),
        el("b", { text: duration(group.sum) }),
        el("span", { class: "share", text: percent(group.sum, all) }),
        el("span", { class: "track" }, bar),
      ),
    );
  });
  const rest =
    groups.length > 12 && el("li", { class: "faint small", text: `and ${count(groups.length - 12)} more` });
  return el("section", { class: "ranking" }, el("h3", { text: `By ${by.heading}` }), el("ol", null, rows, rest));
}

function legend() {
  if (state.paint === "law")
    return el("span", { class: "faint small", text: "neighbouring laws differ in colour" });
  if (state.paint === "length") {
    const titles = ["3 ms", "", "0.3 s", "", "30 s", ""];
    return el(
      "span",
      { class: "scale" },
      [0, 1, 2, 3, 4, 5].map((step) =>
        el("i", { style: { background: `var(--scale-${step})` }, title: titles[step] }),
      ),
      el("span", { class: "faint small", text: "from milliseconds to minutes" }),
    );
  }
  return el("span", { class: "faint small", text: "coloured as the outcomes above" });
}

function paintChoice() {
  const now = state.paint || "outcome";
  return el(
    "span",
    { class: "choice", role: "group", "aria-label": "colour by" },
    Object.keys(paints).map((name) =>
      el("button", {
        type: "button",
        text: name,
        "aria-pressed": String(name === now),
        on: { click: () => go({ paint: name === "outcome" ? "" : name }) },
      }),
    ),
  );
}

let laid = ""; // the filters that the span in sight was made for

function drawTime(parent, wanted, indices) {
  if (!time.lanes.length) time.lanes = bands();
  time.indices = new Set(indices);
  const all = spanOf(time.lanes.flatMap((lane) => lane.indices));
  if (!all) {
    put(parent, el("p", { class: "nothing", text: "No case has a time: nothing ran." }));
    return;
  }
  time.whole = all;
  const key = JSON.stringify(FILTERS.map((field) => wanted[field]));
  if (laid !== key) {
    // A filter zooms to the time of the cases that pass it, with a little air.
    const [from, to] = spanOf(indices) || all;
    const air = isFiltered(wanted) ? (to - from) * 0.02 : 0;
    [time.from, time.to] = [Math.max(all[0], from - air), Math.min(all[1], to + air)];
    laid = key;
  }
  const note = el("p", { class: "caption faint" });
  time.canvas = el("canvas", {
    id: "timeline",
    tabindex: "0",
    role: "img",
    "aria-label": `Timeline of ${plural(indices.length, "case")}; sums by law, subject and optimizer follow.`,
  });
  canvasEvents(time.canvas, note);
  put(
    parent,
    tiles(indices),
    wideCard(
      "Worlds over workers",
      el(
        "span",
        { class: "tools" },
        legend(),
        paintChoice(),
        el("button", { type: "button", text: "whole run", on: { click: wholeRun } }),
      ),
      time.canvas,
      note,
      el("p", {
        class: "faint small",
        text:
          "A bar is a case, a bracket below it the world that it ran in. Drag to move; " +
          "Ctrl or Shift and the wheel, or + and −, to zoom.",
      }),
    ),
    el(
      "div",
      { class: "rankings" },
      CHOICES.map((by) => ranking(by, indices)),
      slowest(indices),
    ),
  );
  paint();
}

function slowest(indices) {
  const most = [...indices].sort((left, right) => column.time[right] - column.time[left]).slice(0, 12);
  if (!most.length) return null;
  const rows = most.map((index) =>
    el(
      "li",
      null,
      el(
        "button",
        { type: "button", on: { click: () => openCase(index, "") } },
        el("span", { class: "name" }, glyph(outcomeOf(index), outcomeOf(index)), " ", nameOf(index)),
        el("span", { class: "faint", text: subjectOf(index) }),
        el("b", { text: duration(secondsOf(index)) }),
      ),
    ),
  );
  return el("section", { class: "ranking" }, el("h3", { text: "Slowest" }), el("ol", null, rows));
}

addEventListener("resize", () => state.view === "time" && paint());
// Paper is narrower than the screen: a new drawing keeps the shape of its letters.
matchMedia("print").addEventListener("change", () => state.view === "time" && paint());
