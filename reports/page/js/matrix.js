// The matrix: laws down, subjects across; of one subject, laws down and optimizers across.

/** Describe a cell to screen readers. */
function cellLabel(law, across, counts) {
  const parts = OUTCOMES.map((outcome, position) =>
    counts[position] ? `${count(counts[position])} ${outcome}` : "",
  );
  return `${law.name}, ${across}: ${parts.filter(Boolean).join(", ")}`;
}

/** Make a cell: the shape of the worst outcome, the number of its cases, and a strip with all outcomes. */
function cell(law, across, indices, scope) {
  const counts = tally(indices);
  const worst = worstOf(indices);
  const outcome = outcomeOf(worst);
  const number = counts[column.outcome[worst]];
  const mixed = number < indices.length;
  return el(
    "button",
    {
      type: "button",
      class: "cell",
      tabindex: "-1",
      "data-outcome": outcome,
      "data-red": isRed(worst),
      "data-cell": `${law.key}\n${across}`,
      "aria-label": cellLabel(law, across, counts),
      title: cellLabel(law, across, counts),
      on: { click: () => openCase(worst, scope) },
    },
    glyph(outcome),
    el("span", { class: "many", text: count(number) }),
    mixed && el("span", { class: "strip" }, bars(counts)),
  );
}

/** Make a law's name, its group in grey. */
function lawName(law) {
  const cut = law.contract ? law.name.lastIndexOf(".") + 1 : law.name.lastIndexOf("/") + 1;
  return [el("span", { class: "group", text: law.name.slice(0, cut) }), law.name.slice(cut)];
}

/** Return for each row whether a space is above it: a group of laws begins there, or has ended. */
function groupStarts(lawIndices) {
  const group = (position) =>
    LAWS[lawIndices[position]].contract ? LAWS[lawIndices[position]].name.split(".")[0] : "";
  const sizes = new Map();
  lawIndices.forEach((_, position) => sizes.set(group(position), (sizes.get(group(position)) || 0) + 1));
  return lawIndices.map(
    (_, position) =>
      position > 0 &&
      group(position) !== group(position - 1) &&
      (sizes.get(group(position)) > 1 || sizes.get(group(position - 1)) > 1),
  );
}

function lawHead(law, total) {
  return el(
    "th",
    { scope: "row" },
    el(
      "button",
      {
        type: "button",
        class: "law",
        title: `the ${plural(total, law.contract ? "case" : "test")} of ${law.key}`,
        on: { click: () => go({ view: "cases", law: law.key }) },
      },
      lawName(law),
    ),
  );
}

/** Make a table of laws by the values of a column. */
function table(label, laws, values, heads, scope) {
  const columns = [...heads.keys()];
  const head = el(
    "tr",
    null,
    el("th", { class: "corner" }),
    columns.map((across) => heads.get(across)),
  );
  const apart = groupStarts([...laws.keys()]);
  const rows = [...laws].map(([lawIndex, indices], position) => {
    const law = LAWS[lawIndex];
    const cells = grouped(indices, (index) => values[index]);
    return el(
      "tr",
      { class: apart[position] ? "apart" : null },
      lawHead(law, indices.length),
      columns.map((across) =>
        el(
          "td",
          { role: "gridcell" },
          cells.has(across) && cell(law, String(heads.get(across).dataset.name), cells.get(across), scope),
        ),
      ),
    );
  });
  return el("table", { role: "grid", "aria-label": label }, el("thead", null, head), el("tbody", null, rows));
}

function columnHead(name, act, title) {
  return el(
    "th",
    { scope: "col", "data-name": name },
    el("button", { type: "button", class: "across", title, on: { click: act } }, breakable(name)),
  );
}

/** Group cases by law, in the order of the run: by contract, then by the first case. */
function lawsOf(indices) {
  const laws = grouped(indices, (index) => column.law[index]);
  return new Map([...laws].sort(([left], [right]) => left - right));
}

function card(title, indices, inner) {
  return el(
    "section",
    { class: "card", "data-red": indices.some(isRed) },
    el("header", null, el("h2", null, breakable(title)), sumOf(indices)),
    el("div", { class: "spread thin", "aria-hidden": "true" }, bars(tally(indices))),
    el("div", { class: "scroll" }, inner),
  );
}

/** Make a card over the whole width. */
const wideCard = (title, aside, ...inner) =>
  el("section", { class: "card wide" }, el("header", null, el("h2", { text: title }), aside), inner);

/** Make the sum of a group of cases: how many are red, or how many there are. */
function sumOf(indices) {
  const red = indices.filter(isRed).length;
  const text = red ? `${count(red)} red of ${count(indices.length)}` : plural(indices.length, CASE);
  return el("span", { class: "sum", text });
}

/** Make a card with laws by the values of a column. A click on a value filters by it, and by `more`. */
function columnCard(title, indices, by, more, headTitle, scope) {
  const heads = firstCases(by, indices).map((first) => {
    const act = () => go({ [by.name]: by.address(first), ...more });
    return [by.values[first], columnHead(by.label(first), act, headTitle(by.label(first)))];
  });
  return card(title, indices, table(title, lawsOf(indices), by.values, new Map(heads), scope));
}

/** Tests without a subject are shown by the ranks of their world. */
const byRanks = (cases) =>
  columnCard(subjectName(""), cases, BY.size, { subject: NONE }, (label) => `tests of ${label}`, "row");

/** Make a card for each contract: its laws by its subjects. */
function bySubject(indices) {
  const contracts = grouped(indices, (index) => lawOf(index).contract);
  const title = (label) => `${label}: law by optimizer`;
  return [...contracts].map(([contract, cases]) =>
    contract === "" ? byRanks(cases) : columnCard(contract, cases, BY.subject, {}, title, "law"),
  );
}

/** Make the card of one subject: its laws by optimizers. Cases without an optimizer are in the first column. */
function byOptimizer(indices, subject) {
  if (subject === "") return indices.length ? byRanks(indices) : [];
  return columnCard(subject, indices, BY.optimizer, { view: "cases" }, (label) => `the cases of ${label}`, "cell");
}

/** Whether there is a matrix to look at: that of plain tests has files down and sizes across. */
const hasMatrix = () =>
  (PLAIN ? new Set(ALL.map((index) => `${column.law[index]} ${column.size[index]}`)).size : COUNT) > 1;

function drawMatrix(parent, wanted, indices) {
  const subject = wanted.subject === NONE ? "" : wanted.subject;
  const crumbs = wanted.subject
    ? el(
        "p",
        { class: "crumbs" },
        el("button", {
          type: "button",
          id: "all-subjects",
          text: "all subjects",
          on: { click: () => go({ subject: "" }) },
        }),
        " › ",
        el("b", null, breakable(subjectName(subject))),
        el("span", { class: "faint", text: wanted.subject === NONE ? "" : "  law by optimizer" }),
      )
    : el(
        "p",
        { class: "crumbs faint" },
        PLAIN
          ? "File by ranks. A cell opens its worst test; a file's name lists its tests."
          : "Law by subject. A cell opens its worst case; a subject's name opens law by optimizer.",
      );
  const cards = wanted.subject ? byOptimizer(indices, subject) : bySubject(indices);
  put(parent, crumbs, indices.length ? el("div", { class: "cards" }, cards) : nothing());
  const first = parent.querySelector(".cell");
  if (first) first.tabIndex = 0;
}

/** Make the text that is shown if no case passes the filters. */
function nothing() {
  const text = COUNT ? `No ${CASE} passes these filters.` : "This run has no multi-rank test.";
  return el("p", { class: "nothing" }, text);
}

// --- arrows over cells -----------------------------------------------------------------------------------

/** What the arrows move over: cells of the matrices of the view, and those of one table in an open case. */
const GRIDS = [
  { selector: ".cell", parent: () => byId("main") },
  { selector: ".mark", parent: (from) => from.closest("table") },
];

/** Return the cell that an arrow key goes to: in the same row, or the nearest above or below, in other tables too. */
function neighbour(from, key, { selector, parent }) {
  const rows = [...parent(from).querySelectorAll("tbody tr")];
  const row = from.closest("tr");
  const across = from.closest("td").cellIndex;
  const inRow = (tr) => [...tr.querySelectorAll(selector)];
  if (key === "ArrowRight" || key === "ArrowLeft") {
    const cells = inRow(row);
    return cells[cells.indexOf(from) + (key === "ArrowRight" ? 1 : -1)] || null;
  }
  if (key === "Home") return inRow(row)[0];
  if (key === "End") return inRow(row).at(-1);
  const step = key === "ArrowDown" ? 1 : -1;
  for (let position = rows.indexOf(row) + step; rows[position]; position += step) {
    const cells = inRow(rows[position]);
    const near = (candidate) => Math.abs(candidate.closest("td").cellIndex - across);
    if (cells.length) return cells.reduce((best, candidate) => (near(candidate) < near(best) ? candidate : best));
  }
  return null;
}

function moveInMatrix(event) {
  if (!["ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) return false;
  const grid = event.target.closest && GRIDS.find(({ selector }) => event.target.closest(selector));
  if (!grid) return false;
  const from = event.target.closest(grid.selector);
  const to = neighbour(from, event.key, grid);
  if (to) {
    from.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  }
  return true;
}
