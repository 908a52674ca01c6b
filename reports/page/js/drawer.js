// The drawer shows all data of one case, its cause first.

/** Make a part of the drawer with its heading. */
function section(title, aside, ...inner) {
  return el("section", { class: "part" }, el("h3", null, title, aside && [" ", aside]), inner);
}

let opener = null; // what had the focus when the drawer was opened

/** Open a case. The scope decides which cases are next and previous: those of a cell of the matrix, or the list. */
function openCase(index, scope) {
  if (!state.case) opener = document.activeElement;
  go({ case: keyOf(index), scope: scope || "" });
}

function closeCase() {
  go({ case: "", scope: "" });
}

/** Return the cases that next and previous go through. */
function neighbours(wanted, index) {
  const indices = matched(wanted);
  if (wanted.scope === "") return ordered(indices, wanted.sort);
  const alike = (other) =>
    column.law[other] === column.law[index] &&
    column.subject[other] === column.subject[index] &&
    (wanted.scope !== "cell" || column.optimizer[other] === column.optimizer[index]) &&
    (wanted.scope !== "row" || column.size[other] === column.size[index]);
  return indices.filter(alike).sort(worstFirst);
}

function turn(by) {
  const index = indexOf(state.case);
  const among = neighbours(state, index);
  const to = among[among.indexOf(index) + by];
  if (to !== undefined) go({ case: keyOf(to) }, false);
}

/** Open the next red case that passes the filters, in the order of the list; after the last, the first. */
function turnToRed(by) {
  const among = ordered(matched(state), state.sort);
  const position = state.case ? among.indexOf(indexOf(state.case)) : by > 0 ? -1 : 0;
  const after = [...among.slice(position + 1), ...among.slice(0, Math.max(0, position))];
  const to = (by > 0 ? after : after.reverse()).find(isRed);
  if (to === undefined) return false;
  if (state.case) go({ case: keyOf(to), scope: "" }, false);
  else openCase(to, "");
  return true;
}

let shown = -1;

/** Draw the case of the address. Its details follow when they are inflated. */
function drawDrawer(wanted, before) {
  const drawer = byId("drawer");
  const index = wanted.case ? indexOf(wanted.case) : -1;
  document.body.classList.toggle("drawn", wanted.case !== "");
  if (wanted.case === "") {
    if (!drawer.hidden) {
      drawer.hidden = true;
      shown = -1;
      giveBack();
    }
    return;
  }
  drawer.hidden = false;
  if (index < 0) {
    put(
      drawer,
      drawerTools(wanted, -1),
      el("p", { class: "nothing", text: `This page has no case ${wanted.case}.` }),
    );
    return;
  }
  if (shown === index && before && before.scope === wanted.scope && matched(before) === matched(wanted)) return;
  shown = index;
  const rest = el("div", { class: "rest", "aria-live": "polite" }, el("p", { class: "faint", text: "…" }));
  put(drawer, drawerTools(wanted, index), caseHead(index), rest);
  drawer.scrollTop = 0;
  if (!before || !before.case || !drawer.contains(document.activeElement))
    byId("close").focus({ preventScroll: true });
  detailOf(index).then(
    (detail) => shown === index && put(rest, caseParts(index, detail)),
    (error) => shown === index && put(rest, el("p", { class: "nothing", text: String(error.message || error) })),
  );
}

/** Return the focus to the element from which the case was opened, or to its cell if that was drawn again. */
function giveBack() {
  const again =
    opener && opener.dataset && opener.dataset.cell
      ? [...document.querySelectorAll(".cell")].find((cell) => cell.dataset.cell === opener.dataset.cell)
      : opener;
  if (again && again.isConnected && again !== document.body) again.focus({ preventScroll: true });
  else byId("main").focus({ preventScroll: true });
  opener = null;
}

function drawerTools(wanted, index) {
  const among = index < 0 ? [] : neighbours(wanted, index);
  const position = among.indexOf(index);
  const button = (id, text, title, act, disabled) =>
    el("button", { type: "button", id, title, "aria-label": title, disabled, text, on: { click: act } });
  const scopeText = wanted.scope ? "of this cell" : "of those seen";
  return el(
    "div",
    { class: "bar" },
    button("previous", "‹", "previous case (k)", () => turn(-1), position <= 0),
    button("next", "›", "next case (j)", () => turn(1), position < 0 || position >= among.length - 1),
    el("span", {
      class: "faint",
      text: position >= 0 ? `${count(position + 1)} of ${count(among.length)} ${scopeText}` : "",
    }),
    leaf(among, index, wanted.scope),
    button("close", "×", "close (Escape)", closeCase, false),
  );
}

/** Draw the neighbours as shapes, if there are few. */
function leaf(among, index, scope) {
  if (scope === "" || among.length < 2 || among.length > 60) return el("span", { class: "leaf" });
  return el(
    "span",
    { class: "leaf" },
    among.map((neighbour) =>
      el(
        "button",
        {
          type: "button",
          tabindex: "-1",
          "aria-label": `${outcomeOf(neighbour)}: ${nameOf(neighbour)}`,
          "aria-current": neighbour === index ? "true" : null,
          title: `${outcomeOf(neighbour)}: ${nameOf(neighbour)}`,
          on: { click: () => go({ case: keyOf(neighbour) }, false) },
        },
        glyph(outcomeOf(neighbour)),
      ),
    ),
  );
}

/** Return the case's message. Of a known deviation it is the ledger's note: what was seen has a part of its own. */
function causeOf(index) {
  const entry = messageOf(index) && outcomeOf(index) === "known" && data.tables.ledger[column.ledger[index]];
  return (entry && entry.note) || messageOf(index);
}

function caseHead(index) {
  const outcome = outcomeOf(index);
  const law = lawOf(index);
  const file = data.runs.length > 1 && data.runs[column.run[index]].file;
  const facts = [...COLUMNS.map((by) => by.factText(index)), file];
  return el(
    "header",
    { class: "head", "data-red": isRed(index) },
    el(
      "p",
      { class: "outcome", "data-outcome": outcome },
      glyph(outcome),
      el("b", { text: outcome }),
      el("span", { class: "faint", text: meaningOf(index) }),
      column.alone[index] ? el("span", { class: "tag", text: "passes alone" }) : null,
    ),
    el(
      "h2",
      { id: "drawer-title" },
      law.contract && el("span", { class: "group", text: groupOf(index) }),
      titleOf(index),
    ),
    el(
      "ul",
      { class: "facts" },
      facts.filter(Boolean).map((fact) => el("li", null, breakable(fact))),
    ),
    causeOf(index) && el("p", { class: "cause", text: causeOf(index) }),
  );
}

function caseParts(index, detail) {
  return [
    ...repeatPart(index, detail),
    beforePart(index, detail),
    ...parityPart(detail),
    mutationPart(detail),
    sweepPart(detail),
    ...failureParts(detail),
    seenPart(detail),
    refusedPart(detail),
    ranksPart(detail),
    errorSection(detail),
    nightsPart(detail),
    ledgerPart(index, detail),
    leaksPart(detail),
    outputPart(detail),
    phasesPart(index, detail),
  ].filter(Boolean);
}

/** Show the case in two runs side by side, if it changed. */
function beforePart(index, detail) {
  const before = detail.before;
  if (!before || (before.outcome === outcomeOf(index) && before.message === messageOf(index))) return null;
  const rows = [
    ["outcome", [glyph(before.outcome), " ", before.outcome], [glyph(outcomeOf(index)), " ", outcomeOf(index)]],
    ["time", duration(before.seconds), duration(secondsOf(index))],
    ["error", errorText(before.ulps), errorText(column.error[index])],
    ["message", before.message, messageOf(index)],
  ].filter(([, then, now]) => then || now);
  const head = ["", data.against.file, data.runs[column.run[index]].file];
  return section(
    "Side by side",
    null,
    el(
      "table",
      { class: "sides" },
      headRow(head.map((text) => el("th", { scope: "col", text }))),
      el(
        "tbody",
        null,
        rows.map(([name, then, now]) =>
          el(
            "tr",
            null,
            el("th", { scope: "row", text: name }),
            el("td", null, then || "–"),
            el("td", null, now || "–"),
          ),
        ),
      ),
    ),
  );
}

/** Make the command that repeats the case, and the buttons to copy. */
function repeatPart(index, detail) {
  const repeat =
    detail.repeat &&
    el(
      "div",
      { class: "repeat" },
      el("code", { text: detail.repeat }),
      copyButton("copy", "copy the command", () => detail.repeat),
    );
  const issue =
    (detail.text || messageOf(index)) &&
    el(
      "div",
      { class: "acts" },
      copyButton("copy for an issue", "copy the failure as Markdown", () => issueText(index, detail)),
    );
  return [repeat, issue].filter(Boolean);
}

/** The rules by which no rank failed: there the roll call has the cause, and the text repeats it among C frames. */
const HANGS = ["deadline", "deadlock", "cut"];

function failureParts(detail) {
  const parts = [textPart(detail), lanesSection(detail.rollcall, detail.blame)];
  return HANGS.includes(detail.rule) ? parts.reverse() : parts;
}

/** Show the failure text; a long text is shortened until a person asks for the rest. */
function textPart(detail) {
  if (!detail.text) return null;
  const lines = detail.text.split("\n");
  const pre = el("pre", { class: "failure", tabindex: "0", text: detail.text });
  if (lines.length <= 40) return section("Failure", null, pre);
  pre.textContent = lines.slice(0, 30).join("\n");
  const more = el("button", {
    type: "button",
    class: "more",
    text: `the other ${count(lines.length - 30)} lines`,
    on: { click: () => ((pre.textContent = detail.text), more.remove()) },
  });
  return section("Failure", null, pre, more);
}

/** Show the deviations of a case that is not red, and so has no failure text. */
function seenPart(detail) {
  if (detail.text || !detail.deviations || !detail.deviations.length) return null;
  const rows = detail.deviations.map((seen) =>
    el(
      "li",
      null,
      el("span", { class: "faint", text: `${ranges(seen.ranks)} ` }),
      breakable(seen.text),
      seen.off == null
        ? null
        : el("span", { class: "faint", text: ` (off by ${seen.off.toPrecision(2)} relative)` }),
    ),
  );
  return section("What was seen", null, el("ul", { class: "plain" }, rows));
}

/** Show the optional parts of the law that the subject refused, with the errors. */
function refusedPart(detail) {
  const refused = Object.entries(detail.refused || {});
  if (!refused.length) return null;
  const rows = refused.map(([part, error]) => el("li", null, `${part}: `, breakable(error)));
  return section("Refused", null, el("ul", { class: "plain" }, rows));
}

const expectation = (entry) =>
  entry.kind === "documented"
    ? ["The library ", el("b", { text: "documents" }), " this limit"]
    : ["The ledger expects ", el("b", { text: entry.kind })];

function ledgerPart(index, detail) {
  const parts = [];
  const entry = detail.ledger;
  if (entry) {
    parts.push(
      el("p", null, ...expectation(entry), causeOf(index) === entry.note ? "." : `: ${entry.note || "no note"}.`),
      entry.expects && el("p", null, "It covers only what is seen so: ", breakable(entry.expects), "."),
      el("p", null, link(entry.link || entry.issue), entry.file && [" in ", el("code", { text: entry.file })]),
    );
  }
  if (detail.lack) parts.push(el("p", null, "Declared as lacking: ", detail.lack));
  return parts.length ? section("What was declared", null, parts) : null;
}

function leaksPart(detail) {
  if (!detail.leaks || !detail.leaks.length) return null;
  const rows = detail.leaks.map((leak) =>
    el(
      "li",
      null,
      el("b", { text: leak.kind }),
      ` ${leak.what} `,
      el("span", { class: "faint", text: ranges(leak.ranks) }),
    ),
  );
  return section("Left behind", null, el("ul", { class: "plain" }, rows));
}

function phasesPart(index, detail) {
  if (!detail.phases || !detail.phases.length) return null;
  const whole = Math.max(1e-9, ...[detail.phases.reduce((sum, phase) => sum + phase.seconds, 0), secondsOf(index)]);
  const strip = detail.phases.map((phase) => {
    const bar = el("i", {
      class: `phase ${phase.when}`,
      title: `${phase.when}: ${duration(phase.seconds)}, ${phase.outcome}`,
    });
    bar.style.width = `${(100 * phase.seconds) / whole}%`;
    return bar;
  });
  const texts = detail.phases.map(
    (phase) => `${phase.when} ${duration(phase.seconds)}${phase.outcome === "passed" ? "" : ` (${phase.outcome})`}`,
  );
  return section(
    "Time",
    el("span", { class: "faint", text: `${duration(secondsOf(index))} in all` }),
    el("div", { class: "phases" }, strip),
    el("p", { class: "faint small", text: texts.join(" · ") }),
    el("p", { class: "faint small id" }, el("code", { text: idOf(index) })),
  );
}
