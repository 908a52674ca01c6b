// The roll call as lanes: one a rank, from the outermost frame to where it stood. Ranks that are in one frame share
// its station; where they part, the lanes go on alone. The odd one out is marked.

const LANE = { left: 76, step: 26, most: 22, least: 7 };

/** The ranks in the order of their lanes: as the stances have them, which puts those in one place side by side. */
function laneOrder(stances) {
  return stances.flatMap((stance, which) =>
    [...stance.ranks].sort((a, b) => a - b).map((rank) => ({ rank, which })),
  );
}

/** Stations: frames at one depth that neighbouring lanes share, all the way from the outermost. */
function stations(stances, lanes) {
  const stacks = stances.map((stance) => [...(stance.frames || [])].reverse());
  const deepest = Math.max(0, ...stacks.map((stack) => stack.length));
  const found = [];
  for (let depth = 0; depth < deepest; depth++) {
    let open = null;
    lanes.forEach(({ which }, at) => {
      const stack = stacks[which];
      if (depth >= stack.length) {
        open = null;
        return;
      }
      const path = stack.slice(0, depth + 1).join("\n");
      if (open && open.path === path) open.to = at;
      else
        found.push(
          (open = { path, depth, from: at, to: at, frame: stack[depth], last: depth === stack.length - 1 }),
        );
    });
  }
  return { found, deepest, stacks };
}

/** Depths at which every rank is in the same frame are told in one station, but for the last of them. */
function together(found, lanes, deepest) {
  let shared = 0;
  while (shared < deepest) {
    const here = found.filter((station) => station.depth === shared);
    if (here.length !== 1 || here[0].from !== 0 || here[0].to !== lanes - 1) break;
    shared++;
  }
  return Math.max(0, shared - 1);
}

/** The colour of a stance; the first is the odd one out where there are several. */
const tint = (which, stances) => (stances.length > 1 && which === 0 ? "odd" : `even${which % 3}`);

function lanesSection(stances) {
  if (!stances || !stances.length) return null;
  const lanes = laneOrder(stances);
  const height = Math.max(LANE.least, Math.min(LANE.most, 420 / lanes.length));
  const { found, deepest } = stations(stances, lanes);
  const folded = together(found, lanes.length, deepest);
  const x = (depth) => LANE.left + (Math.max(0, depth - folded) + (folded ? 1 : 0)) * LANE.step + 8;
  const y = (lane) => 8 + height * (lane + 0.5);
  const right = x(Math.max(0, deepest - 1)) + 22;
  const picture = svg("svg", {
    class: "lanes",
    viewBox: `0 0 ${right} ${16 + height * lanes.length}`,
    width: right,
    height: 16 + height * lanes.length,
    role: "img",
    "aria-label": stances.map((stance) => `${ranges(stance.ranks)}: ${stance.doing}`).join("; "),
  });
  const caption = el("p", {
    class: "caption faint",
    text: deepest ? "Each station is a frame; point at one to read it." : "",
  });
  drawLanes(picture, stances, lanes, { x, y, height });
  drawStations(picture, found, folded, { x, y }, caption);
  return section(
    "Roll call",
    el("span", { class: "faint", text: "what each rank was doing when its world did not finish" }),
    el(
      "div",
      { class: "rollcall" },
      picture,
      el(
        "ol",
        { class: "stances" },
        stances.map((one, which) => stanceText(one, which, stances)),
      ),
    ),
    caption,
  );
}

function drawLanes(picture, stances, lanes, { x, y, height }) {
  const named = height >= 12;
  lanes.forEach(({ rank, which }, at) => {
    const depth = (stances[which].frames || []).length - 1;
    const end = depth >= 0 ? x(depth) : LANE.left + 8;
    picture.append(
      svg("line", { class: `lane ${tint(which, stances)}`, x1: LANE.left - 6, x2: end, y1: y(at), y2: y(at) }),
    );
    if (depth < 0) picture.append(svg("text", { class: "name", x: end + 6, y: y(at) + 4 }, "no stack"));
    if (named) {
      picture.append(
        svg(
          "text",
          { class: `name ${tint(which, stances)}`, x: LANE.left - 14, y: y(at) + 4, "text-anchor": "end" },
          `rank ${rank}`,
        ),
      );
    }
  });
  if (named) return;
  stances.forEach((stance, which) => {
    const first = lanes.findIndex((lane) => lane.which === which);
    const middle = y(first + (stance.ranks.length - 1) / 2);
    const text =
      stance.ranks.length === 1
        ? `rank ${stance.ranks[0]}`
        : `${Math.min(...stance.ranks)}–${Math.max(...stance.ranks)}`;
    picture.append(
      svg(
        "text",
        { class: `name ${tint(which, stances)}`, x: LANE.left - 14, y: middle + 4, "text-anchor": "end" },
        text,
      ),
    );
  });
}

function drawStations(picture, found, folded, { x, y }, caption) {
  if (folded) {
    const top = y(found[0].from);
    const foot = y(found[0].to);
    const names = found.filter((one) => one.depth < folded).map((one) => one.frame);
    const stub = svg("g", { class: "station folded" }, svg("title", null, names.join("\n")));
    stub.append(
      svg("rect", { x: LANE.left + 2, y: top - 6, width: 24, height: foot - top + 12, rx: 6 }),
      svg("text", { x: LANE.left + 14, y: (top + foot) / 2 + 3.5, "text-anchor": "middle" }, `+${folded}`),
    );
    stub.addEventListener(
      "mouseenter",
      () => (caption.textContent = `${plural(folded, "frame")} that all ranks share`),
    );
    picture.append(stub);
  }
  for (const station of found) {
    if (station.depth < folded) continue;
    const top = y(station.from);
    const stop = svg("g", { class: station.last ? "station last" : "station" }, svg("title", null, station.frame));
    stop.append(
      svg("rect", { x: x(station.depth) - 5, y: top - 5, width: 10, height: y(station.to) - top + 10, rx: 5 }),
    );
    stop.addEventListener("mouseenter", () => (caption.textContent = station.frame));
    picture.append(stop);
  }
}

function stanceText(stance, which, stances) {
  const frames = stance.frames || [];
  const native = stance.native || [];
  const stack = [
    ...frames.map((frame) => el("li", { text: frame })),
    ...native.map((frame) => el("li", { class: "native", text: frame })),
  ];
  const odd = stances.length > 1 && which === 0;
  return el(
    "li",
    { class: `stance ${tint(which, stances)}` },
    el("b", { text: ranges(stance.ranks) }),
    odd && el("span", { class: "tag", text: "the odd one out" }),
    el("span", { class: "doing", text: stance.doing }),
    stack.length &&
      el(
        "details",
        null,
        el("summary", { text: plural(frames.length + native.length, "frame") }),
        el("ol", { class: "frames" }, stack),
      ),
  );
}
