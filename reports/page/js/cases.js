// The list of cases. However many there are, only those in sight are in the document.

const narrow = matchMedia("screen and (max-width: 760px)");
const rowHeight = () => (narrow.matches ? 58 : 28);

/** The cases in their order, and the lines that they stand on: a place in that order, or the head of a file. */
const list = { indices: [], lines: [], at: 0, body: null, space: null, drawn: "" };

/** Sorted by a column; a dash before its name turns it round. */
function sorted(indices, by) {
  const found = LISTED.find(({ name }) => name === by.replace(/^-/, "")) || LISTED[0];
  const sign = by.startsWith("-") ? -1 : 1;
  return [...indices].sort((left, right) => sign * compareBy(found, left, right) || left - right);
}

/** Plain tests stand under their files, until they are sorted by something else. */
const byFile = (sort) => PLAIN && FILES.size > 1 && sort === "";

/** The cases as the list shows them: files with what needs a person first, and in each file its worst tests. */
function ordered(indices, sort) {
  if (!byFile(sort)) return sorted(indices, sort);
  const files = [...grouped(indices, (index) => column.law[index]).values()];
  return files
    .map((tests) => sorted(tests, ""))
    .sort((one, other) => worstFirst(one[0], other[0]))
    .flat();
}

/** What stands on each line: the head of a file before its first test, and each case by its place. */
function linesOf(order, sort) {
  const places = [...order.keys()];
  if (!byFile(sort)) return places;
  const starts = (at) => at === 0 || column.law[order[at]] !== column.law[order[at - 1]];
  const files = grouped(order, (index) => column.law[index]);
  return places.flatMap((at) => (starts(at) ? [{ tests: files.get(column.law[order[at]]) }, at] : [at]));
}

const lineOf = (at) => list.lines.indexOf(at);

function heading(of, by) {
  const now = of.sort.replace(/^-/, "") === by.name || (by === LISTED[0] && !of.sort);
  const turned = of.sort.startsWith("-");
  const next = now && !turned ? `-${by.name}` : by.name;
  return el(
    "button",
    {
      type: "button",
      role: "columnheader",
      class: cellClass(by),
      "aria-sort": now ? (turned ? "descending" : "ascending") : "none",
      title: by.order,
      "aria-label": by.heading || by.name,
      on: { click: () => go({ sort: next }) },
    },
    by.heading || "●",
    now && el("span", { class: "turn", "aria-hidden": "true", text: turned ? " ↑" : " ↓" }),
  );
}

/** The classes of a column's cells: its name, whether it is a number, and where it has no room. */
const cellClass = ({ name, number, beside, narrow, paper }) =>
  [`c-${name}`, number && "number", !beside && "not-beside", !narrow && "not-narrow", !paper && "below-on-paper"]
    .filter(Boolean)
    .join(" ");

function row(at, line) {
  const index = list.indices[at];
  const made = el(
    "div",
    {
      role: "row",
      class: "row",
      id: `row-${at}`,
      "aria-rowindex": line + 2,
      "aria-selected": String(at === list.at),
      "data-red": isRed(index),
      on: { click: () => openFromList(at) },
    },
    LISTED.map((by) =>
      el("span", { role: "gridcell", class: cellClass(by), style: { "--narrow": by.narrow } }, by.cell(index)),
    ),
  );
  return placedAt(made, line);
}

/** The head of a file: its name, and how many of its tests need a person. */
function fileRow(tests, line) {
  const law = lawOf(tests[0]);
  const red = tests.filter(isRed).length;
  const made = el(
    "div",
    { role: "row", class: "file", "aria-rowindex": line + 2, "data-red": red > 0 },
    el(
      "span",
      { role: "rowheader" },
      el(
        "button",
        {
          type: "button",
          tabindex: "-1",
          title: `only ${law.key}`,
          on: { click: () => go({ law: law.key, case: "", scope: "" }) },
        },
        lawName(law),
      ),
    ),
    el("span", {
      role: "gridcell",
      class: "sum",
      text: red ? `${count(red)} red of ${count(tests.length)}` : plural(tests.length, "test"),
    }),
  );
  return placedAt(made, line);
}

function placedAt(made, line) {
  made.style.transform = `translateY(${line * rowHeight()}px)`;
  return made;
}

const lineRow = (what, line) => (typeof what === "number" ? row(what, line) : fileRow(what.tests, line));

/** Put the rows in sight into the document, and a few on either side. */
function drawRows(anew) {
  if (!list.body) return;
  const height = rowHeight();
  const first = Math.max(0, Math.floor(list.body.scrollTop / height) - 8);
  const last = Math.min(list.lines.length, Math.ceil((list.body.scrollTop + list.body.clientHeight) / height) + 8);
  const drawn = `${first}-${last}-${list.at}`;
  if (!anew && drawn === list.drawn) return;
  list.drawn = drawn;
  const rows = [];
  for (let line = first; line < last; line++) rows.push(lineRow(list.lines[line], line));
  put(list.space, rows);
  list.body.setAttribute("aria-activedescendant", list.indices.length ? `row-${list.at}` : "");
}

function openFromList(at) {
  list.at = at;
  drawRows();
  openCase(list.indices[at], "");
}

/** Bring a row into sight; the heads stay at the top, over what is scrolled. */
function reveal(at) {
  const height = rowHeight();
  const { body, space } = list;
  // Before the first test of a file its head comes into sight too.
  const top = (typeof list.lines[lineOf(at) - 1] === "object" ? lineOf(at) - 1 : lineOf(at)) * height;
  const foot = (lineOf(at) + 1) * height + space.offsetTop;
  if (top < body.scrollTop) body.scrollTop = top;
  else if (foot > body.scrollTop + body.clientHeight) body.scrollTop = foot - body.clientHeight;
}

function moveInList(event) {
  if (!list.body || document.activeElement !== list.body || !list.indices.length) return false;
  const page = Math.max(1, Math.floor(list.body.clientHeight / rowHeight()) - 1);
  const last = list.indices.length - 1;
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -last, End: last };
  if (event.key === "Enter") openFromList(list.at);
  else if (event.key in steps) {
    list.at = Math.min(last, Math.max(0, list.at + steps[event.key]));
    reveal(list.at);
    drawRows();
  } else return false;
  return true;
}

function drawCases(into, of, indices) {
  const order = ordered(indices, of.sort);
  const same = list.indices.length === order.length && list.indices.every((index, at) => index === order[at]);
  const kept = same && list.body ? { at: list.at, top: list.body.scrollTop } : { at: 0, top: 0 };
  list.indices = order;
  list.lines = linesOf(order, of.sort);
  list.at = kept.at;
  const opened = of.case ? order.indexOf(indexOf(of.case)) : -1;
  if (opened >= 0) list.at = opened;
  list.space = el("div", { class: "space", role: "rowgroup" });
  list.space.style.height = `${list.lines.length * rowHeight()}px`;
  const heads = LISTED.map((by) => heading(of, by));
  list.body = el(
    "div",
    {
      class: "rows",
      id: "rows",
      tabindex: "0",
      role: "grid",
      "aria-label": NAMES.cases,
      "aria-rowcount": list.lines.length + 1,
      on: { scroll: () => drawRows() },
    },
    el("div", { class: "heads", role: "row", "aria-rowindex": 1 }, heads),
    list.space,
  );
  const frame = el("div", { class: PLAIN ? "list plain" : "list" }, list.body);
  for (const width of ["wide", "beside", "paper"])
    frame.style.setProperty(`--${width}`, LISTED.map((by) => by[width]).join(" "));
  put(into, frame, order.length ? null : nothing());
  list.body.scrollTop = kept.top;
  if (opened >= 0) reveal(opened);
  drawRows(true);
}

narrow.addEventListener("change", () => state.view === "cases" && draw());
addEventListener("resize", () => drawRows());

/** On paper there is no scrolling: as many rows as anybody would read are put into the document. */
function drawForPaper() {
  if (state.view !== "cases" || !list.body) return;
  put(list.space, list.lines.slice(0, 1000).map(lineRow));
}
addEventListener("beforeprint", drawForPaper);
addEventListener("afterprint", () => drawRows(true));
