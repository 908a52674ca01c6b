// The ranks of a case side by side, and their output. If there are many, those that ended alike are together.

const FATES = {
  passed: ["pass", "passed"],
  failed: ["fail", "failed"],
  skipped: ["skipped", "skipped"],
  lost: ["crash", "lost: it died, or left without a record"],
  cut: ["not-run", "cut: ended because the world could not finish"],
};

/** The order of the ranks: the most urgent first, all others by their number. */
const URGENCY = { failed: 0, lost: 1, cut: 2 };

/** With more ranks than this, ranks that ended alike are shown together. */
const EACH = 8;
/** This many cards are drawn at first. */
const CARDS = 16;

/** Group the ranks that ended alike; ranks that failed or died come first. */
function rankGroups(ranks) {
  const alike = (rank) => JSON.stringify([rank.outcome, rank.phase, rank.text, rank.where]);
  if (ranks.length <= EACH) return ranks.map((rank) => [rank]);
  const urgency = ([rank]) => URGENCY[rank.outcome] ?? 3;
  const groups = [...grouped(ranks, alike).values()];
  return groups.sort((left, right) => urgency(left) - urgency(right) || left[0].rank - right[0].rank);
}

/** Format the times of a group: one time, or the least and the most. */
function groupTime(group) {
  const seconds = group.map((rank) => rank.seconds || 0);
  const [least, most] = [Math.min(...seconds), Math.max(...seconds)].map(duration);
  return least === most ? most : `${least} to ${most}`;
}

function rankCard(group, longest) {
  const [rank] = group;
  const [shape, meaning] = FATES[rank.outcome] || ["error", rank.outcome];
  const most = Math.max(...group.map((member) => member.seconds || 0));
  const bar = el("i", { class: "took", title: groupTime(group) });
  bar.style.width = longest ? `${(100 * most) / longest}%` : "0";
  return el(
    "li",
    { class: "rank", "data-fate": rank.outcome },
    el(
      "p",
      { class: "name" },
      glyph(shape, meaning),
      el("b", { text: ranges(group.map((member) => member.rank)) }),
      el("span", { class: "faint", text: rank.outcome + (rank.phase ? ` in ${rank.phase}` : "") }),
    ),
    el("span", { class: "track" }, bar),
    el("span", { class: "faint small", text: most ? groupTime(group) : "" }),
    rank.text && el("p", { class: "message", text: rank.text }),
    rank.where && el("p", { class: "location" }, el("code", { text: rank.where })),
  );
}

function ranksPart(detail) {
  if (!detail.ranks || !detail.ranks.length) return null;
  const longest = Math.max(...detail.ranks.map((rank) => rank.seconds || 0));
  const groups = rankGroups(detail.ranks);
  const cards = (some) => some.map((group) => rankCard(group, longest));
  const list = el("ol", { class: "ranks" }, cards(groups.slice(0, CARDS)));
  const rest = groups.slice(CARDS);
  const more = el("button", { type: "button", class: "more", text: `the other ${count(rest.length)}` });
  more.addEventListener("click", () => (list.append(...cards(rest)), more.remove()));
  return section(
    "Ranks",
    el("span", { class: "faint", text: ruleText(detail.rule) }),
    list,
    rest.length > 0 && more,
  );
}

const ruleText = (rule) => (rule ? `decided by the rule “${rule}”` : "");

/** Show the captured output. The first text is open, and those of ranks that failed or died. */
function outputPart(detail) {
  if (!detail.output || !detail.output.length) return null;
  const bad = new Set(detail.blame ? detail.blame.ranks : []);
  for (const rank of detail.ranks || [])
    if (rank.outcome === "failed" || rank.outcome === "lost") bad.add(rank.rank);
  const ofBad = (part) => (part.ranks || []).some((rank) => bad.has(rank));
  const outputs = detail.output.map((part, position) =>
    el(
      "details",
      { open: position === 0 || (position < 4 && ofBad(part)) },
      el(
        "summary",
        null,
        part.name,
        el("span", { class: "faint", text: ` ${plural(part.text.trimEnd().split("\n").length, "line")}` }),
      ),
      el("pre", { tabindex: "0", text: part.text }),
    ),
  );
  return section("Captured output", null, outputs);
}
