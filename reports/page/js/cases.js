// The list of cases. Only visible rows are in the document, however many cases there are.

const narrow = matchMedia("screen and (max-width: 760px)");
const rowHeight = () => (narrow.matches ? 58 : 28);

/** The sorted cases, and the lines of the list: a position among the cases, or the head of a file. */
const list = { indices: [], lines: [], current: 0, body: null, space: null, drawn: "" };

/** Sort cases by a column. A dash before its name reverses the order. */
function sorted(indices, by) {
  const found = LISTED.find(({ name }) => name === by.replace(/^-/, "")) || LISTED[0];
  const sign = by.startsWith("-") ? -1 : 1;
  return [...indices].sort((left, right) => sign * compareBy(found, left, right) || left - right);
}

/** Plain tests are listed under their files until they are sorted by a column. */
const byFile = (sort) => PLAIN && FILES.size > 1 && sort === "";

/** Return the cases in the order of the list: the worst files first, and in each file its worst tests. */
function ordered(indices, sort) {
  if (!byFile(sort)) return sorted(indices, sort);
  const files = [...grouped(indices, (index) => column.law[index]).values()];
  return files
    .map((tests) => sorted(tests, ""))
    .sort((left, right) => worstFirst(left[0], right[0]))
    .flat();
}

/** Return the lines of the list: the position of each case, and the head of a file before its first test. */
function linesOf(order, sort) {
  const positions = [...order.keys()];
  if (!byFile(sort)) return positions;
  const starts = (position) => position === 0 || column.law[order[position]] !== column.law[order[position - 1]];
  const files = grouped(order, (index) => column.law[index]);
  return positions.flatMap((position) =>
    starts(position) ? [{ tests: files.get(column.law[order[position]]) }, position] : [position],
  );
}

const lineOf = (position) => list.lines.indexOf(position);

function heading(wanted, by) {
  const now = wanted.sort.replace(/^-/, "") === by.name || (by === LISTED[0] && !wanted.sort);
  const turned = wanted.sort.startsWith("-");
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

/** The classes of a column's cells: its name, whether it is a number, and which layouts leave it out. */
const cellClass = ({ name, number, beside, narrow, paper }) =>
  [`c-${name}`, number && "number", !beside && "not-beside", !narrow && "not-narrow", !paper && "below-on-paper"]
    .filter(Boolean)
    .join(" ");

function row(position, line) {
  const index = list.indices[position];
  const node = el(
    "div",
    {
      role: "row",
      class: "row",
      id: `row-${position}`,
      "aria-rowindex": line + 2,
      "aria-selected": String(position === list.current),
      "data-red": isRed(index),
      on: { click: () => openFromList(position) },
    },
    LISTED.map((by) =>
      el("span", { role: "gridcell", class: cellClass(by), style: { "--narrow": by.narrow } }, by.cell(index)),
    ),
  );
  return placedAt(node, line);
}

/** Make the head of a file: its name, and the number of its red tests. */
function fileRow(tests, line) {
  const law = lawOf(tests[0]);
  const node = el(
    "div",
    { role: "row", class: "file", "aria-rowindex": line + 2, "data-red": tests.some(isRed) },
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
    fill(sumOf(tests), { role: "gridcell" }, []),
  );
  return placedAt(node, line);
}

function placedAt(node, line) {
  node.style.transform = `translateY(${line * rowHeight()}px)`;
  return node;
}

const lineRow = (entry, line) => (typeof entry === "number" ? row(entry, line) : fileRow(entry.tests, line));

/** Put the visible rows into the document, and a few above and below them. */
function drawRows(anew) {
  if (!list.body) return;
  const height = rowHeight();
  const first = Math.max(0, Math.floor(list.body.scrollTop / height) - 8);
  const last = Math.min(list.lines.length, Math.ceil((list.body.scrollTop + list.body.clientHeight) / height) + 8);
  const drawn = `${first}-${last}-${list.current}`;
  if (!anew && drawn === list.drawn) return;
  list.drawn = drawn;
  const rows = [];
  for (let line = first; line < last; line++) rows.push(lineRow(list.lines[line], line));
  put(list.space, rows);
  list.body.setAttribute("aria-activedescendant", list.indices.length ? `row-${list.current}` : "");
}

function openFromList(position) {
  list.current = position;
  drawRows();
  openCase(list.indices[position], "");
}

/** Scroll to a row. The headings stay at the top and cover rows. */
function reveal(position) {
  const height = rowHeight();
  const { body, space } = list;
  // The head of a file is shown with its first test.
  const top =
    (typeof list.lines[lineOf(position) - 1] === "object" ? lineOf(position) - 1 : lineOf(position)) * height;
  const foot = (lineOf(position) + 1) * height + space.offsetTop;
  if (top < body.scrollTop) body.scrollTop = top;
  else if (foot > body.scrollTop + body.clientHeight) body.scrollTop = foot - body.clientHeight;
}

function moveInList(event) {
  if (!list.body || document.activeElement !== list.body || !list.indices.length) return false;
  const page = Math.max(1, Math.floor(list.body.clientHeight / rowHeight()) - 1);
  const last = list.indices.length - 1;
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -last, End: last };
  if (event.key === "Enter") openFromList(list.current);
  else if (event.key in steps) {
    list.current = Math.min(last, Math.max(0, list.current + steps[event.key]));
    reveal(list.current);
    drawRows();
  } else return false;
  return true;
}

function drawCases(parent, wanted, indices) {
  const order = ordered(indices, wanted.sort);
  const same =
    list.indices.length === order.length && list.indices.every((index, position) => index === order[position]);
  const kept = same && list.body ? { current: list.current, top: list.body.scrollTop } : { current: 0, top: 0 };
  list.indices = order;
  list.lines = linesOf(order, wanted.sort);
  list.current = kept.current;
  const opened = wanted.case ? order.indexOf(indexOf(wanted.case)) : -1;
  if (opened >= 0) list.current = opened;
  list.space = el("div", { class: "space", role: "rowgroup" });
  list.space.style.height = `${list.lines.length * rowHeight()}px`;
  const heads = LISTED.map((by) => heading(wanted, by));
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
  put(parent, frame, order.length ? null : nothing());
  list.body.scrollTop = kept.top;
  if (opened >= 0) reveal(opened);
  drawRows(true);
}

narrow.addEventListener("change", () => state.view === "cases" && draw());
addEventListener("resize", () => drawRows());

/** Paper does not scroll: put as many rows into the document as anybody would read. */
function drawForPaper() {
  if (state.view !== "cases" || !list.body) return;
  put(list.space, list.lines.slice(0, 1000).map(lineRow));
}
addEventListener("beforeprint", drawForPaper);
addEventListener("afterprint", () => drawRows(true));
