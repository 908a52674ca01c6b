// The roll call as lanes: a lane for each rank, from the outermost frame at the top to the innermost. Ranks in the same
// frame share its station; below it, their lanes part. The ranks to blame, as the run file has them, are marked. Each
// station has its frame beside it, so that nobody needs to point at it.

/** With more ranks than this, ranks with one stack share a lane, as they share a line in the roll call. */
const LANES = 12;

/** The widest and the narrowest lane, and how wide all of them may be together, in pixels. */
const WIDTH = { most: 20, least: 3, all: 168 };

/** Mark the stances whose ranks are to blame, if others are not. */
function marked(stances, blame) {
  const blamed = new Set(blame ? blame.ranks : []);
  const odd = stances.map((stance) => stance.ranks.some((rank) => blamed.has(rank)));
  return stances.map((stance, which) => ({ ...stance, odd: odd[which] && odd.includes(false) }));
}

/** The colour of a stance. */
const tint = (which, stances) => (stances[which].odd ? "odd" : `even${which % 3}`);

const frameNode = (frame, code) => ({ frame, code, children: new Map(), ends: [] });

/** Make one tree of the stacks, outermost frame first: a frame with the same callers is one node. */
function frameTree(stances) {
  const root = frameNode("", "");
  stances.forEach((stance, which) => {
    let node = root;
    const frames = stance.frames || [];
    for (let position = frames.length - 1; position >= 0; position--) {
      const frame = frames[position];
      if (!node.children.has(frame)) node.children.set(frame, frameNode(frame, (stance.code || [])[position]));
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
    const row = { frame: node.frame, code: node.code, from: lanes.length, to: 0, ranks: [] };
    if (!isRoot) rows.push(row);
    for (const which of node.ends) {
      const ranks = [...stances[which].ranks].sort((left, right) => left - right);
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

/** Return how many frames, but for the last, all ranks share at the start: they are folded into one station. */
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
  const explanation = "what each rank was doing when its world did not finish, outermost frame first";
  return section("Roll call", el("span", { class: "faint", text: explanation }), list);
}

/** Draw the lanes and their stations. The first ``fold`` rows are drawn as one, which ``unfold`` opens. */
function laneRows({ stances, lanes, rows, together }, fold, unfold) {
  const heads = together ? [] : lanes.map((lane, position) => laneHead(lane, position, stances));
  // The first line of the grid holds the names of lanes; rows that are folded share the second.
  const line = (row) => (fold ? Math.max(0, row - fold) + (row < fold ? 0 : 1) : row) + 2;
  const lines = lanes.map((lane, position) => {
    const area = { "grid-column": String(position + 1), "grid-row": `2 / ${Math.max(3, line(lane.end))}` };
    return el("li", { class: `lane ${tint(lane.which, stances)}`, style: area, "aria-hidden": "true" });
  });
  const stub = fold > 0 && [foldRow(rows.slice(0, fold), lanes.length, unfold)];
  const drawn = rows.map((row, position) => {
    if (position < fold) return null;
    return row.which === undefined
      ? frameRow(row, line(position))
      : stanceRow(stances[row.which], tint(row.which, stances), row, line(position));
  });
  return [heads, lines, stub, drawn];
}

function laneHead({ rank, which }, position, stances) {
  const style = { "grid-column": String(position + 1), "grid-row": "1" };
  return el("li", { class: `name ${tint(which, stances)}`, title: `rank ${rank}`, style, text: String(rank) });
}

/** Make a row of the grid: a station over its lanes, and the texts beside them. */
function laneRow(props, row, line, station, ...texts) {
  const over = { "grid-column": `${row.from + 1} / ${row.to + 1}`, "grid-row": String(line) };
  return el(
    "li",
    props,
    fill(station, { style: over }, []),
    el("div", { class: "beside", style: { "grid-row": String(line) } }, texts),
  );
}

function frameRow(row, line) {
  const [name, location] = frameParts(row.frame);
  const title = `${ranges(row.ranks)}: ${row.frame}`;
  return laneRow(
    { class: "frame", title },
    row,
    line,
    el("span", { class: "station", "aria-hidden": "true" }),
    el("span", { class: "frame-name", text: name }),
    location && el("span", { class: "faint location", text: location }),
    row.code && el("code", { class: "source", text: row.code }),
  );
}

/** Split a frame into its function, and its location, which is shown in smaller letters. */
function frameParts(frame) {
  const position = frame.lastIndexOf(" at ");
  return position < 0 ? [frame, ""] : [frame.slice(0, position), frame.slice(position)];
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

/** Make the end of the lanes of ranks with one stack: the ranks, and what they were doing. */
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
