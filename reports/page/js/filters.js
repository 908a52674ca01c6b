// Which cases are seen: by text, outcome, and the columns that have a filter.

const kept = new Map(); // the last few answers: leafing through cases asks for the same one again

/** The cases that pass all filters, as collected. */
function matched(of) {
  const key = JSON.stringify(FILTERS.map((field) => of[field]));
  if (kept.has(key)) return kept.get(key);
  const outcomes = of.outcome.length ? OUTCOMES.map((outcome) => of.outcome.includes(outcome)) : null;
  const wanted = CHOICES.filter((by) => of[by.name] !== "").map((by) => [by.values, valueAt(by, of[by.name])]);
  const asked = of.q.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = asked.length ? haystack() : null;
  const indices = [];
  for (let index = 0; index < COUNT; index++) {
    if (outcomes !== null && !outcomes[column.outcome[index]]) continue;
    if (!wanted.every(([values, value]) => values[index] === value)) continue;
    if (texts !== null && !asked.every((word) => texts[index].includes(word))) continue;
    indices.push(index);
  }
  if (kept.size > 8) kept.clear();
  kept.set(key, indices);
  return indices;
}

// --- the bar -----------------------------------------------------------------------------------------

const option = (value, text) => el("option", { value, text });

/** The values of a column that cases can be filtered by: the first case with each. */
const choices = new Map(CHOICES.map((by) => [by, firstCases(by, ALL)]));

/** The value that the address names, or undefined if no case has it. */
const valueAt = (by, address) => by.values[choices.get(by).find((index) => by.address(index) === address)];

/** A choice among the values of a column; the first stands for all. */
function choice(by) {
  const select = el("select", {
    id: `filter-${by.name}`,
    "aria-label": by.filter,
    on: { change: () => go({ [by.name]: select.value, case: "", scope: "" }) },
  });
  select.append(option("", by.filter));
  for (const [group, indices] of grouped(choices.get(by), by.group)) {
    const parent = group ? select.appendChild(el("optgroup", { label: group })) : select;
    parent.append(...indices.map((index) => option(by.address(index), by.option(index))));
  }
  return select;
}

function makeFilters() {
  const text = el("input", {
    id: "filter-q",
    type: "search",
    placeholder: "filter by words   /",
    "aria-label": "Filter by words in ids, messages and subjects",
    autocomplete: "off",
    spellcheck: "false",
    on: { input: () => go({ q: text.value }, false) },
  });
  const clear = el("button", {
    id: "clear",
    type: "button",
    text: "clear",
    on: { click: () => go({ ...unfiltered(), case: "", scope: "" }) },
  });
  const told = el("output", { id: "told", "aria-live": "polite" });
  put(byId("filters"), text, CHOICES.map(choice), clear, told);
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
}

function drawFilters(of, indices) {
  const text = byId("filter-q");
  if (text.value !== of.q) text.value = of.q;
  for (const { name: field } of CHOICES) {
    const select = byId(`filter-${field}`);
    select.value = of[field];
    // A name that this run does not have still filters: it is shown, so that an empty page can be understood.
    if (select.value !== of[field]) select.append(option(of[field], of[field]));
    select.value = of[field];
    select.classList.toggle("set", of[field] !== "");
    select.hidden = of[field] === "" && select.querySelectorAll("option").length <= 2; // all, and the one that there is
  }
  byId("clear").hidden = !isFiltered(of);
  byId("told").textContent = isFiltered(of) ? `${count(indices.length)} of ${count(COUNT)}` : "";
}

// --- the outcomes: legend, counts and filter in one ------------------------------------------------------

const SAYS = {
  crash: "a rank died",
  timeout: "the world missed its deadline",
  error: "the test itself went wrong",
  fail: "the law is broken",
  stale: "the ledger expects a deviation, and it passes",
  "not-run": "listed, but not run",
  known: "a deviation that the ledger knows",
  approximate: "within the bound that the subject declares",
  unsupported: "a declared lack, refused as declared",
  skipped: "skipped, with a reason",
  "not-applicable": "says nothing here, worked out by the kit",
  pass: "proven on every rank",
};

/** What the words mean for a test that checks no law. */
const SAYS_OF_TESTS = {
  fail: "the test failed",
  known: "failed as the mark xfail expects",
  stale: "expected to fail, and passes",
};

const saysOf = (index) =>
  (lawOf(index).contract ? null : SAYS_OF_TESTS[outcomeOf(index)]) || SAYS[outcomeOf(index)];

function toggleOutcome(outcome) {
  const set = state.outcome.includes(outcome);
  const outcomes = set ? state.outcome.filter((one) => one !== outcome) : [...state.outcome, outcome];
  go({ outcome: OUTCOMES.filter((one) => outcomes.includes(one)), case: "", scope: "" });
}

/** One chip an outcome, with its shape; the counts are of the cases that pass the other filters. */
function drawOutcomes(of) {
  const counts = tally(matched({ ...of, outcome: [] }));
  const everywhere = tally(ALL);
  const chips = OUTCOMES.map((outcome, place) => {
    if (everywhere[place] === 0 && !of.outcome.includes(outcome)) return null;
    return el(
      "button",
      {
        type: "button",
        class: "chip",
        "data-outcome": outcome,
        "aria-pressed": String(of.outcome.includes(outcome)),
        title: SAYS[outcome],
        on: { click: () => toggleOutcome(outcome) },
      },
      glyph(outcome),
      el("b", { text: count(counts[place]) }),
      el("span", { text: outcome }),
    );
  });
  put(byId("outcomes"), ...chips);
  const seen = counts.map((number, place) =>
    of.outcome.length && !of.outcome.includes(OUTCOMES[place]) ? 0 : number,
  );
  put(byId("spread"), ...bars(seen));
}

/** Outcomes in proportion, each wide enough to be seen. */
function bars(counts) {
  return counts.map((number, place) => {
    if (number === 0) return null;
    const bar = el("i", { "data-outcome": OUTCOMES[place] });
    bar.style.flexGrow = String(number);
    return bar;
  });
}
