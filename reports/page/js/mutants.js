// What became of a test with one of its collectives changed at a time: lines of the user's code down, ways across.

/** The outcomes of a changed test, from what is most worth to look at. */
const MUTANT_OUTCOMES = {
  survived: { sign: "✕", text: "no assertion notices it" },
  unstable: { sign: "!", text: "the test failed, though it made no difference" },
  "not-landed": { sign: "?", text: "not tried" },
  killed: { sign: "✓", text: "the test failed" },
  redundant: { sign: "=", text: "it made no difference" },
};
const MUTANT_STATES = Object.keys(MUTANT_OUTCOMES);

/** The ways to change a collective, in the order of the columns. */
const MUTANT_WAYS = ["left-out", "mean", "sum", "stale", "zero", "twice", "without", "root", "no-wait", "seed"];

/** Show the changes of one way at one line: the worst outcome, and how many of several have it. */
function mutantCell(mutants) {
  if (!mutants) return el("td");
  const worst = MUTANT_STATES.find((state) => mutants.some(({ outcome }) => outcome === state));
  const alike = mutants.filter(({ outcome }) => outcome === worst);
  const { sign, text } = MUTANT_OUTCOMES[worst];
  const texts = alike.slice(0, 3).map((mutant) => mutant.text + (mutant.message ? `: ${mutant.message}` : ""));
  const label = `${text}: ${texts.join("; ")}${alike.length > 3 ? `; and ${count(alike.length - 3)} more` : ""}`;
  return el(
    "td",
    null,
    el(
      "span",
      { class: "mark", role: "img", "data-mutant": worst, title: label, "aria-label": label },
      el("span", { class: "sign", text: sign }),
      mutants.length > 1 && el("span", { class: "alike", text: `${alike.length}/${mutants.length}` }),
    ),
  );
}

function mutantTable(mutants) {
  const known = (way) => (MUTANT_WAYS.indexOf(way) + 1 || MUTANT_WAYS.length + 1);
  const ways = [...new Set(mutants.map(({ way }) => way))].sort((left, right) => known(left) - known(right));
  const byLine = (left, right) =>
    !left.name - !right.name || left.location.localeCompare(right.location, "en", { numeric: true });
  const lines = grouped([...mutants].sort(byLine), ({ name, location }) =>
    name ? `${name} at ${location}` : "the whole test",
  );
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      { class: "marks mutants" },
      headRow(
        el("th", { scope: "col", text: "collective" }),
        ways.map((way) => el("th", { scope: "col", text: way })),
      ),
      el(
        "tbody",
        null,
        [...lines].map(([line, ofLine]) => {
          const byWay = grouped(ofLine, ({ way }) => way);
          return el(
            "tr",
            null,
            el("th", { scope: "row" }, breakable(line)),
            ways.map((way) => mutantCell(byWay.get(way))),
          );
        }),
      ),
    ),
  );
}

/** Show what --mutate found of a case: what nothing notices, each change at its line, and the counts. */
function mutationPart(detail) {
  const mutation = detail.mutation;
  const remarks = ((mutation || detail).remarks || []).map((text) => el("p", { class: "largest" }, breakable(text)));
  if (!mutation) return remarks.length > 0 && section("Can it fail?", null, remarks);
  const mutants = mutation.mutants || [];
  const states = MUTANT_STATES.filter((state) => mutants.some(({ outcome }) => outcome === state));
  const counts = states.map((state) => `${count(mutants.filter(({ outcome }) => outcome === state).length)} ${state}`);
  const survivors = [...new Set(mutants.filter(({ outcome }) => outcome === "survived").map(({ text }) => text))];
  const sample =
    mutants.length < mutation.possible ? ` (a sample of ${count(mutation.possible)}, seed ${mutation.seed})` : "";
  const facts = `${plural(mutants.length, "change")}${sample} of ${plural(mutation.calls, "collective")}`;
  return section(
    "Can it fail?",
    null,
    survivors.map((text) => el("p", { class: "fault" }, "Nothing notices if ", breakable(text), ".")),
    remarks,
    mutants.length > 0 && [
      el("div", { class: "parity" }, mutantTable(mutants)),
      el(
        "p",
        { class: "legend faint small" },
        states.map((state) =>
          el("span", { class: "key" }, `${MUTANT_OUTCOMES[state].sign} ${state}: ${MUTANT_OUTCOMES[state].text}`),
        ),
      ),
    ],
    el("p", { class: "largest", text: `${[facts, ...counts].join(", ")}.` }),
  );
}
