// The roll call as lanes: one a rank, from the outermost frame at the top down to where it stood. Ranks that are in one
// frame share its station; where they part, the lanes go on alone. The ranks to blame, as the run file has them, are
// marked. Each station has its frame beside it, so that there is nothing to point at.

/** With more ranks than this, those that stood together have one lane, as they have one line in the roll call. */
const LANES = 12;

/** The widest and the narrowest lane, and how wide all of them may be together, in pixels. */
const WIDTH = { most: 20, least: 3, all: 168 };

/** Stances with whether their ranks are the odd ones out: to blame, while others here are not. */
function marked(stances, blame) {
  const blamed = new Set(blame ? blame.ranks : []);
  const odd = stances.map((stance) => stance.ranks.some((rank) => blamed.has(rank)));
  return stances.map((stance, which) => ({ ...stance, odd: odd[which] && odd.includes(false) }));
}

/** The colour of a stance. */
const tint = (which, stances) => (stances[which].odd ? "odd" : `even${which % 3}`);

const frameNode = (frame) => ({ frame, children: new Map(), ends: [] });

/** The stacks as one tree, outermost frame first: a frame that stances came to by the same way is one node. */
function frameTree(stances) {
  const root = frameNode("");
  stances.forEach((stance, which) => {
    let node = root;
    for (const frame of [...(stance.frames || [])].reverse()) {
      if (!node.children.has(frame)) node.children.set(frame, frameNode(frame));
      node = node.children.get(frame);
    }
    node.ends.push(which);
  });
  return root;
}

/** The lanes from left to right, and from top to bottom what stands on them: frames, and stances at their ends. */
function layOut(stances, together) {
  const lanes = [];
  const rows = [];
  const visit = (node, isRoot) => {
    const row = { frame: node.frame, from: lanes.length, to: 0, ranks: [] };
    if (!isRoot) rows.push(row);
    for (const which of node.ends) {
      const ranks = [...stances[which].ranks].sort((one, other) => one - other);
      const from = lanes.length;
      for (const rank of together ? ranks.slice(0, 1) : ranks) lanes.push({ rank, which, end: rows.length });
      rows.push({ which, from, to: lanes.length, ranks });
      row.ranks.push(...ranks);
    }
    for (const child of node.children.values()) row.ranks.push(...visit(child, false));
    row.to = lanes.length;
    return row.ranks;
  };
  visit(frameTree(stances), true);
  return { lanes, rows };
}

/** How many of the first frames are those of all ranks, but for the last of them: these are folded into one station. */
function foldable(rows, lanes, stances) {
  if (stances.length < 2) return 0;
  const parted = rows.findIndex((row) => row.which !== undefined || row.to - row.from < lanes.length);
  return Math.max(0, parted - 1);
}

function lanesSection(rollcall, blame) {
  if (!rollcall || !rollcall.length) return null;
  const stances = marked(rollcall, blame);
  const ranks = stances.reduce((sum, stance) => sum + stance.ranks.length, 0);
  const together = ranks > LANES;
  const { lanes, rows } = layOut(stances, together);
  const list = el("ol", { class: together ? "lanes together" : "lanes" });
  const folded = foldable(rows, lanes, stances);
  const draw = (fold) =>
    put(
      list,
      laneRows({ stances, lanes, rows, together }, fold, () => draw(0)),
    );
  list.style.setProperty("--count", lanes.length);
  list.style.setProperty(
    "--lane",
    `${Math.max(WIDTH.least, Math.min(WIDTH.most, Math.floor(WIDTH.all / lanes.length)))}px`,
  );
  draw(folded);
  const says = "what each rank was doing when its world did not finish, outermost frame first";
  return section("Roll call", el("span", { class: "faint", text: says }), list);
}

/** The lines of the lanes, and what stands on them; ``fold`` rows are drawn as one, which ``unfold`` opens. */
function laneRows({ stances, lanes, rows, together }, fold, unfold) {
  const heads = together ? [] : lanes.map((lane, at) => laneHead(lane, at, stances));
  // The first line of the grid holds the names of lanes; rows that are folded share the second.
  const line = (row) => (fold ? Math.max(0, row - fold) + (row < fold ? 0 : 1) : row) + 2;
  const lines = lanes.map((lane, at) => {
    const where = { "grid-column": String(at + 1), "grid-row": `2 / ${Math.max(3, line(lane.end))}` };
    return el("li", { class: `lane ${tint(lane.which, stances)}`, style: where, "aria-hidden": "true" });
  });
  const stub = fold > 0 && [foldRow(rows.slice(0, fold), lanes.length, unfold)];
  const drawn = rows.map((row, at) => {
    if (at < fold) return null;
    return row.which === undefined
      ? frameRow(row, line(at))
      : stanceRow(stances[row.which], tint(row.which, stances), row, line(at));
  });
  return [heads, lines, stub, drawn];
}

function laneHead({ rank, which }, at, stances) {
  const style = { "grid-column": String(at + 1), "grid-row": "1" };
  return el("li", { class: `name ${tint(which, stances)}`, title: `rank ${rank}`, style, text: String(rank) });
}

/** A row of the grid: a station over the lanes that it is on, and what is said of it beside them. */
function laneRow(props, row, line, station, ...said) {
  const over = { "grid-column": `${row.from + 1} / ${row.to + 1}`, "grid-row": String(line) };
  return el(
    "li",
    props,
    fill(station, { style: over }, []),
    el("div", { class: "says", style: { "grid-row": String(line) } }, said),
  );
}

function frameRow(row, line) {
  const [name, where] = frameParts(row.frame);
  const title = `${ranges(row.ranks)}: ${row.frame}`;
  return laneRow(
    { class: "frame", title },
    row,
    line,
    el("span", { class: "station", "aria-hidden": "true" }),
    el("span", { class: "frame-name", text: name }),
    where && el("span", { class: "faint where", text: where }),
  );
}

/** A frame's function, and the rest of its line, which is shown in smaller letters. */
function frameParts(frame) {
  const at = frame.lastIndexOf(" at ");
  return at < 0 ? [frame, ""] : [frame.slice(0, at), frame.slice(at)];
}

function foldRow(rows, lanes, unfold) {
  const button = el("button", {
    type: "button",
    class: "more",
    text: `${plural(rows.length, "frame")} that all ranks share`,
    title: rows.map((row) => row.frame).join("\n"),
    on: { click: unfold },
  });
  const station = el("span", { class: "station folded", "aria-hidden": "true", text: `+${rows.length}` });
  return laneRow({ class: "frame" }, { from: 0, to: lanes }, 2, station, button);
}

/** The end of the lanes of those who stood together: who they are, and what they were doing. */
function stanceRow(stance, colour, row, line) {
  const native = stance.native || [];
  return laneRow(
    { class: `stance ${colour}` },
    row,
    line,
    el("span", { class: "station end", "aria-hidden": "true" }),
    el("b", { text: ranges(stance.ranks) }),
    stance.odd && el("span", { class: "tag", text: "the odd one out" }),
    el("span", { class: "doing", text: stance.doing }),
    !(stance.frames || []).length && el("span", { class: "faint small", text: "no stack is known" }),
    native.length > 0 &&
      el(
        "details",
        null,
        el("summary", { text: plural(native.length, "native frame") }),
        el(
          "ol",
          { class: "native" },
          native.map((frame) => el("li", { text: frame })),
        ),
      ),
  );
}
