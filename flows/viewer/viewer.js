// The pages of a report. Data come as scripts that call kgqa(NAME, DATA), from data/NAME.js or from this very page.
// Whatever graphs, questions and models say is set as text, never as markup.
"use strict";
(() => {
  const loaded = {}, waiting = {};
  const PAGE = 50, MOST_EDGES = 200, ASK_EVERY = 5000, LEFT_AT = "kgqa-left-at";
  const WORDS = { R: "right", W: "wrong", A: "no answer" };
  let overview, sorting = {}, turns = 0;
  let framed = location.protocol === "blob:" ? "#/" : null;  // MLflow's frame may go nowhere, not even within the page

  window.kgqa = (name, data) => {
    loaded[name] = typeof data === "string" ? unpacked(data) : data;
    for (const done of waiting[name] || []) done(loaded[name]);
    delete waiting[name];
  };

  function load(name) {
    if (loaded[name]) return Promise.resolve(loaded[name]);
    return new Promise((done, fail) => {
      const first = !waiting[name];
      (waiting[name] = waiting[name] || []).push(done);
      if (!first) return;
      const script = document.createElement("script");
      script.src = `data/${name}.js`;
      script.onerror = () => { delete waiting[name]; fail(new Error(`data/${name}.js cannot be read: is the folder whole?`)); };
      document.head.append(script);
    });
  }

  function unpacked(text) {
    const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
  }

  function h(tag, attributes, ...children) {
    const svg = ["svg", "g", "line", "path", "circle", "text", "title", "rect"].includes(tag);
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== false && value != null) node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.flat().filter(child => child != null && child !== false).map(child => child.nodeType ? child : String(child)));
    return node;
  }

  const many = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

  // ------ Addresses: #/, #/questions?verdict=W&system=NAME, #/q/ID?system=NAME

  function where() {
    const [path, query] = ((framed ?? location.hash).slice(1) || "/").split("?");
    return { path, query: new URLSearchParams(query || "") };
  }

  function address(path, query) {
    const given = Object.entries(query || {}).filter(([, value]) => value !== "" && value != null);
    const text = new URLSearchParams(given).toString();
    return `#${path}${text ? "?" + text : ""}`;
  }

  function go(to, filtering) {
    if (framed != null) framed = to;
    else if (filtering) history.replaceState(null, "", to);
    else { location.hash = to; return; }
    if (!filtering) arrive();
  }

  const arrive = () => { show(); document.getElementById("main").focus({ preventScroll: true }); window.scrollTo(0, 0); };

  async function show() {
    const { path, query } = where(), main = document.getElementById("main"), turn = ++turns;
    try {
      if (!overview) {
        overview = await load("overview");
        if (overview.live) follow();
      }
      const place = query.get("system");  // the notes in MLflow number systems; a name stays when another one finishes
      if (overview.runs[place]) query.set("system", overview.runs[place].name);
      document.getElementById("title").textContent = overview.title;
      for (const link of document.querySelectorAll("nav a.about")) link.hidden = !overview.about;
      const page = path.startsWith("/q/") ? await question(decodeURIComponent(path.slice(3)), query)
        : path === "/questions" ? await questions(query) : path === "/data" ? await data() : path === "/curves" ? await curves() : front();
      if (turn !== turns) return;  // somebody went on while this was read
      main.replaceChildren(...page.filter(part => part));
      document.title = `${main.querySelector("h2")?.textContent || "Report"} · ${overview.title}`;
      const left = overview.live && sessionStorage.getItem(LEFT_AT);  // by the version before
      if (left) window.scrollTo(0, Number(left) + main.offsetTop);
      if (left) sessionStorage.removeItem(LEFT_AT);
    } catch (error) {
      if (turn !== turns) return;
      main.replaceChildren(h("p", { role: "alert" }, error.message));
    }
    for (const link of document.querySelectorAll("nav a")) {
      const here = link.getAttribute("href") === `#${path}`;
      if (here) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
    }
  }

  // kgqa view says what is still to be made, and whether there is more to show than this page does.
  function follow() {
    const said = document.getElementById("live"), main = document.getElementById("main");
    const tell = (...parts) => { said.hidden = !parts.length; if (said.textContent !== parts.map(part => part.textContent || part).join("")) said.replaceChildren(...parts); };
    const done = () => {
      const { version, missing, at_work } = loaded.version, next = () => { sessionStorage.setItem(LEFT_AT, scrollY - main.offsetTop); location.replace(`../${version}/${location.hash}`); };
      const left = missing.length && `${at_work.length ? `At work: ${at_work.join(", ")}` : "No run is at work"}. Still to be made: ${missing.slice(0, 8).join(", ")}${missing.length > 8 ? ` and ${missing.length - 8} more` : ""}. `;
      const reading = where().path.startsWith("/q/") || main.contains(document.activeElement) && document.activeElement !== main;
      if (version === overview.live) tell(...[left].filter(Boolean));
      else if (reading) tell(left || "", h("button", { type: "button", class: "more", onclick: next }, "Show what is new"));
      else { next(); return; }
      setTimeout(follow, ASK_EVERY);
    };
    const failed = () => { tell("kgqa view does not answer: nothing new comes."); setTimeout(follow, ASK_EVERY); };
    const script = h("script", { src: `data/version.js?${Date.now()}`, onload: () => { script.remove(); done(); }, onerror: () => { script.remove(); failed(); } });
    document.head.append(script);
  }

  // ------ Overview

  function front() {
    const tables = overview.tables.map((one, place) => table(one, `table${place}`));
    const parts = [h("h2", {}, "Systems side by side"), h("p", {}, `${many(overview.num_questions, "question")}, ${many(overview.runs.length, "run")}.`)];
    parts.push(...tables.slice(0, 1), ...overview.sentences.map(text => h("p", {}, text)));
    if (!overview.runs.length) return [...parts, h("p", {}, "No system has answered yet.")];
    if (overview.points.length > 1) parts.push(h("h2", {}, "Accuracy against cost"), cost());
    parts.push(h("h2", {}, "Where answers were lost"), lost());
    if (tables.length > 1) parts.push(h("h2", {}, "More"), ...tables.slice(1));
    return parts;
  }

  function number(cell) {
    const found = parseFloat(String(cell).replace(/^[<>=\s]+|,/g, ""));
    return Number.isNaN(found) ? -Infinity : found;
  }

  function table(one, key) {
    const order = sorting[key], rows = [...one.rows];
    if (order) rows.sort((a, b) => {
      const [x, y] = [a, b].map(row => number(row[order.column]));  // hops, and numbers of answers, are words too
      const numbers = order.column >= one.figures_from || (x > -Infinity && y > -Infinity);
      const found = (numbers && x - y) || a[order.column].localeCompare(b[order.column]);  // days of one year begin alike
      return order.down ? -found : found;
    });
    const head = one.header.map((name, column) => h("th", {
      scope: "col", class: column >= one.figures_from ? "figure" : null,
      "aria-sort": order && order.column === column ? (order.down ? "descending" : "ascending") : null,
    }, h("button", { type: "button", onclick: () => {
      sorting[key] = { column, down: order && order.column === column ? !order.down : column >= one.figures_from };
      whole.replaceWith(table(one, key));
      document.getElementById(`${key}-${column}`)?.focus();
    }, id: `${key}-${column}` }, name)));
    const body = rows.map(row => h("tr", {}, row.map((cell, column) =>
      h(column ? "td" : "th", { scope: column ? null : "row", class: column >= one.figures_from ? "figure" : null }, cell))));
    const whole = scrolled(one.title, h("table", {}, h("caption", {}, one.title), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
    return whole;
  }

  function scrolled(label, ...parts) {
    return h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": label }, parts);
  }

  function cost() {
    const chosen = where().query.get("cost") || "calls", own = overview.points.filter(one => one[chosen] != null);
    const most = Math.max(...own.map(one => one[chosen]), 1e-9), x = value => 60 + 660 * value / most, y = value => 300 - 2.6 * value;
    const labels = [];
    const named = one => {  // names of systems that are alike stand below each other, near their dots or nowhere
      const left = x(one[chosen]), first = y(one.hits1) + 4;
      const height = [first, first + 14, first + 28].find(at => at < 320 && !labels.some(([x, y]) => Math.abs(x - left) < 130 && Math.abs(y - at) < 14));
      if (height) labels.push([left, height]);
      return height && h("text", { x: left + 8, y: height }, one.system);
    };
    const drawing = h("svg", { viewBox: "0 0 900 340", role: "img", "aria-label": `Hits@1 against ${chosen} per question` },
      [0, 25, 50, 75, 100].map(at => [h("line", { class: "edge", x1: 60, x2: 720, y1: y(at), y2: y(at) }), h("text", { x: 50, y: y(at) + 4, "text-anchor": "end" }, at)]).flat(),
      h("text", { x: 390, y: 330, "text-anchor": "middle" }, `${chosen} per question (0 to ${most.toPrecision(3)})`),
      h("text", { x: 14, y: 24 }, "Hits@1"),
      own.map(one => h("g", {}, h("circle", { class: "point", cx: x(one[chosen]), cy: y(one.hits1), r: 5 }, h("title", {}, `${one.system}: ${one.hits1.toFixed(1)} at ${one[chosen].toPrecision(3)}`)), named(one))));
    const pick = h("select", { id: "cost", onchange: event => {
      go(address("/", { cost: event.target.value }), true);
      show().then(() => document.getElementById("cost")?.focus());
    } },
      ["calls", "tokens", "seconds"].map(name => h("option", { value: name, selected: name === chosen }, name)));
    return h("div", {}, h("form", {}, h("label", {}, "cost", pick)), scrolled("Accuracy against cost", drawing),
      own.length > labels.length && h("p", { class: "soft" }, `No room for ${many(own.length - labels.length, "name")}: point at a dot.`));
  }

  function lost() {
    const reasons = Object.keys(overview.reasons);
    if (!overview.lost.some(own => reasons.some(name => own[name]))) return h("p", {}, "None: the first answer to every question is right.");
    return scrolled("Where answers were lost", h("table", {},
      h("caption", {}, "Questions whose first answer is wrong, or that have none; each counts once"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "system"), reasons.map(name => h("th", { scope: "col", class: "figure", title: overview.reasons[name] }, name)))),
      h("tbody", {}, overview.runs.map((run, place) => h("tr", {}, h("th", { scope: "row" }, run.name), reasons.map((name, at) =>
        h("td", { class: "figure" }, h("a", { href: address("/questions", { system: run.name, lost: at }) }, overview.lost[place][name])))))),
    ), h("ul", {}, reasons.map(name => h("li", {}, `${name}: ${overview.reasons[name]}`))));
  }

  // ------ The data, and the curves of what was trained

  async function data() {
    const { tables } = overview.about ? await load("about") : { tables: [] };
    if (!tables.length) return [h("h2", {}, "Data"), h("p", {}, "What the data of a configuration hold is shown when its run has ended.")];
    return [h("h2", {}, "Data"), ...tables.map((one, place) => table(one, `data${place}`))];
  }

  async function curves() {
    const { curves: all } = overview.about ? await load("about") : { curves: [] }, stages = [...new Set(all.map(one => one.stage))];
    if (!all.length) return [h("h2", {}, "Curves"), h("p", {}, "Nothing was trained.")];
    return [h("h2", {}, "Curves"), ...stages.flatMap(stage => [h("h3", {}, stage),
      h("div", { class: "systems" }, all.filter(one => one.stage === stage).map(curve))])];
  }

  function curve({ figure, points }) {
    const steps = points.map(([step]) => step), values = points.map(([, value]) => value).filter(Number.isFinite);
    const low = Math.min(...values), high = Math.max(...values), from = Math.min(...steps), to = Math.max(...steps);
    const x = step => 70 + 320 * (step - from) / (to - from || 1), y = value => 150 - 130 * (value - low) / (high - low || 1);
    const shown = value => value && Math.abs(value) < 0.001 ? value.toExponential(2) : Number(value.toPrecision(4)).toString(), drawn = points.filter(([, value]) => Number.isFinite(value));
    const line = drawn.map(([step, value], at) => `${at ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join(" ");
    const last = drawn.length ? shown(drawn[drawn.length - 1][1]) : "no number";
    return h("figure", {}, h("figcaption", {}, figure, h("span", { class: "soft" }, ` last ${last}`)),
      h("svg", { viewBox: "0 0 400 180", role: "img", "aria-label": `${figure}: from ${shown(points[0][1] ?? NaN)} to ${last} in ${to} steps` },
        h("text", { x: 64, y: y(high) + 4, "text-anchor": "end" }, shown(high)), high > low && h("text", { x: 64, y: y(low) + 4, "text-anchor": "end" }, shown(low)),
        h("text", { x: 70, y: 172 }, from), h("text", { x: 390, y: 172, "text-anchor": "end" }, to), h("path", { class: "edge on", d: line }),
        drawn.length === 1 && h("circle", { class: "point", cx: x(drawn[0][0]), cy: y(drawn[0][1]), r: 4 })));
  }

  // ------ The list of questions

  function prepared(list) {
    if (list.upper) return list;
    list.upper = list.verdicts.map(own => own.toUpperCase());
    list.apart = list.ids.map((_, row) => list.upper.some(own => own[row] !== list.upper[0][row]));
    list.folded = list.texts.map((text, row) => `${text}\n${list.ids[row]}`.toLowerCase());
    return list;
  }

  function matching(list, query) {
    const words = (query.get("text") || "").toLowerCase(), system = query.get("system") || "", verdict = query.get("verdict") || "";
    const hops = query.get("hops") || "", lost = query.get("lost") || "", only = query.get("only") || "";
    const places = overview.runs.flatMap((run, place) => !system || run.name === system ? [place] : []);
    const rows = [];
    for (let row = 0; row < list.ids.length; row++) {
      if (hops && String(list.hops[row]) !== hops) continue;
      if (words && !list.folded[row].includes(words)) continue;
      if (only === "disagreement" && !list.apart[row]) continue;
      if (places.length && !places.some(place => (!verdict || list.upper[place][row] === verdict)  // all of one system
        && (lost === "" || list.lost[place][row] === Number(lost))
        && (only !== "unsupported" || "rwa".includes(list.verdicts[place][row])))) continue;
      rows.push(row);
    }
    return [...rows.filter(row => list.apart[row]), ...rows.filter(row => !list.apart[row])];
  }

  async function questions(query) {
    const list = prepared(await load("questions")), rows = matching(list, query), from = Number(query.get("from") || 0);
    const change = name => event => {
      const next = Object.fromEntries(query);
      next[name] = event.target.value;
      delete next.from;
      go(address("/questions", next), true);
      show().then(() => document.getElementById(`filter-${name}`)?.focus());
    };
    const pick = (name, label, options) => h("label", {}, label, h("select", { id: `filter-${name}`, onchange: change(name) },
      options.map(([value, text]) => h("option", { value, selected: (query.get(name) || "") === String(value) }, text))));
    const hops = [...new Set(list.hops)].filter(one => one != null).sort((a, b) => a - b);
    const filters = h("form", { role: "search", "aria-label": "Filters", onsubmit: event => event.preventDefault() },
      h("label", {}, "text or id", h("input", { type: "search", id: "filter-text", value: query.get("text") || "", onchange: change("text") })),
      pick("system", "system", [["", "any"], ...overview.runs.map(run => [run.name, run.name])]),
      pick("verdict", "answered", [["", "any"], ...Object.entries(WORDS)]),
      pick("only", "only", [["", "all"], ["disagreement", "systems disagree"], ["unsupported", "without evidence"]]),
      pick("hops", "hops", [["", "any"], ...hops.map(one => [one, one])]),
      pick("lost", "lost", [["", "anywhere"], ...Object.keys(overview.reasons).map((name, at) => [at, name])]));
    const shown = rows.slice(from, from + PAGE), base = Object.fromEntries(query);
    const body = shown.map(row => h("tr", {},
      h("th", { scope: "row", class: "text" }, h("a", { href: address(`/q/${encodeURIComponent(list.ids[row])}`, { system: query.get("system") }) }, list.texts[row] || list.ids[row])),
      h("td", { class: "figure" }, list.hops[row] ?? "–"), h("td", { class: "figure" }, list.golds[row]),
      overview.runs.map((_, place) => mark(list.verdicts[place][row], list.f1[place][row]))));
    const pages = h("p", {}, from > 0 && h("a", { href: address("/questions", { ...base, from: Math.max(0, from - PAGE) || "" }) }, "← before"), " ",
      from + PAGE < rows.length && h("a", { href: address("/questions", { ...base, from: from + PAGE }) }, "after →"));
    return [h("h2", {}, "Questions"), filters,
      h("p", { role: "status" }, `${rows.length.toLocaleString("en")} of ${list.ids.length.toLocaleString("en")}, those first where systems disagree`),
      scrolled("Questions", h("table", {},
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "question"), h("th", { scope: "col", class: "figure" }, "hops"), h("th", { scope: "col", class: "figure" }, "golds"), overview.runs.map(run => h("th", { scope: "col" }, run.name)))),
        h("tbody", {}, body))), pages];
  }

  function mark(letter, f1) {
    const word = WORDS[letter.toUpperCase()], bare = letter !== letter.toUpperCase();
    return h("td", { class: letter.toUpperCase(), title: `F1 ${f1}` }, `${word}${word !== "no answer" ? ` ${f1}` : ""}${bare ? " (no evidence)" : ""}`);
  }

  // ------ One question

  async function question(id, query) {
    const list = await load("questions"), row = list.ids.indexOf(id);
    if (row < 0) return [h("h2", {}, "No such question"), h("p", {}, id)];
    const chunk = await load(`q${String(Math.floor(row / overview.chunk)).padStart(4, "0")}`);
    const one = chunk.questions[row % overview.chunk], chosen = query.has("system") ? overview.runs.findIndex(run => run.name === query.get("system")) : 0;
    const step = (by, text) => list.ids[row + by] != null && h("a", { href: address(`/q/${encodeURIComponent(list.ids[row + by])}`, { system: query.get("system") }) }, text);
    return [h("h2", {}, one.text || one.id),
      h("p", { class: "soft" }, `${one.id} · ${one.hops == null ? "hops unknown" : many(one.hops, "hop")} · `, step(-1, "← before"), " ", step(1, "after →")),
      h("p", {}, h("strong", {}, "Gold: "), one.golds.join("; ") || "none"),
      h("h2", {}, "Evidence"), drawing(one, chosen), walked(one),
      h("h2", {}, "Systems"), h("div", { class: "systems" }, one.runs.map((run, place) => system(one, run, place, chosen, chunk.strings)))];
  }

  function system(one, run, place, chosen, strings) {
    const letter = run.verdict.toUpperCase(), name = overview.runs[place];
    const text = pieces => pieces.map(piece => strings[piece]).join("\n\n");
    const answers = run.answers.map((answer, at) => h("li", { class: run.right[at] ? "R" : "W" }, answer, run.right[at] ? " ✓" : " ✗", run.supported[at] === false && " (no evidence)"));
    const facts = [`F1 ${run.f1}`, run.confidence != null && `confidence ${run.confidence.toFixed(2)}`, run.num_calls && many(run.num_calls, "call"),
      run.num_prompt_tokens && many(run.num_prompt_tokens + run.num_tokens, "token"), run.seconds != null && `${run.seconds.toFixed(2)} s`, ...Object.entries(run.counts).filter(([what]) => what.startsWith("num_")).map(([what, count]) => `${what.slice(4).replaceAll("_", " ")}: ${count}`)].filter(Boolean).join(" · ");
    const ranks = !run.num_candidates ? "" : run.ranks.length ? `Golds among ${many(run.num_candidates, "candidate")} at rank ${run.ranks.slice(0, 10).join(", ")}.` : `No gold among ${many(run.num_candidates, "candidate")}.`;
    return h("section", { class: `system${place === chosen ? " chosen" : ""}`, "aria-label": name.name },
      h("h3", {}, h("a", { href: address(`/q/${encodeURIComponent(one.id)}`, { system: name.name }) }, name.name), " ", h("span", { class: letter }, WORDS[letter])),
      h("p", { class: "soft" }, name.by, name.by && h("br"), facts),
      run.error && h("pre", { class: "W", tabindex: 0 }, run.error),
      answers.length ? h("ul", {}, answers) : h("p", {}, run.status || "no answer"),
      run.num_answers > answers.length && h("p", { class: "soft" }, `and ${run.num_answers - answers.length} more`),
      run.unmatched?.length ? h("p", {}, `Not in the graph: ${run.unmatched.join("; ")}`) : null,
      run.lost && h("p", {}, h("strong", {}, `Lost: ${run.lost}`), ` (${overview.reasons[run.lost]}). ${ranks}`),
      run.plans.length ? h("details", {}, h("summary", {}, many(run.plans.length, "plan")), h("ol", {}, run.plans.map(plan => h("li", {}, plan)))) : null,
      run.paths.length ? h("details", {}, h("summary", {}, many(run.paths.length, "path")), h("ul", {}, run.paths.map(path => h("li", {}, path.map(triple => `(${triple.join(", ")})`).join(" → "))))) : null,
      run.calls.map((call, at) => h("details", {}, h("summary", {}, `${at + 1}. ${call.what}${call.problem ? `: ${call.problem}` : ""} · ${call.read ? `about ${many(call.read, "token")} read, ` : ""}${call.tokens ? `${many(call.tokens, "token")} written` : "nothing written"}`),
        call.system.length ? h("pre", { tabindex: 0 }, text(call.system)) : null, h("pre", { tabindex: 0 }, text(call.prompt)), call.texts.map(reply => h("pre", { class: "R", tabindex: 0 }, text(reply))))));
  }

  // The paths of all systems, by their distance from where they start; those of the chosen system stand out.
  function drawing(one, chosen) {
    const depth = new Map(), edges = new Map(), starts = new Set(one.explored?.topics), ends = new Set(one.runs.flatMap(run => run.answers).concat(one.golds));
    const start = ([[head, , tail], next]) => next ? ([next[0], next[2]].includes(head) ? tail : head)
      : !starts.has(head) && (starts.has(tail) || ends.has(head)) ? tail : head;  // of one triple both ends could be it
    for (const run of one.runs) for (const path of run.paths) if (path.length > 1) starts.add(start(path));
    one.runs.forEach((run, place) => run.paths.forEach(path => {
      if (!path.length) return;
      let here = start(path);
      path.forEach(([head, relation, tail], at) => {
        const from = here, there = from === head ? tail : head, key = JSON.stringify([head, relation, tail]);
        here = there;
        if (!edges.has(key) && edges.size >= MOST_EDGES) return;
        if (!depth.has(from) || depth.get(from) > at) depth.set(from, at);
        if (!depth.has(there)) depth.set(there, at + 1);
        const edge = edges.get(key) || { head, relation, tail, by: new Set() };
        edge.by.add(place);
        edges.set(key, edge);
      });
    }));
    if (!edges.size) return h("p", {}, "No system gave a path.");
    const lines = [...edges.values()].map(({ by, ...edge }) => ({ ...edge, on: by.has(chosen), said: [...by].map(at => overview.runs[at].name).join(", ") }));
    return layered(lines, depth, one, {}, `${many(edges.size, "triple")} of the paths that systems gave${edges.size >= MOST_EDGES ? ", more are left out" : ""}; those of ${overview.runs[chosen]?.name || "no system"} stand out, golds have a green rim`);
  }

  // What the explorer walked: the more attention, the stronger the line; the more probable, the larger the dot.
  function walked(one) {
    const found = one.explored;
    if (!found || !found.edges.length) return null;
    const box = h("details", { ontoggle: () => { if (box.open && box.children.length === 1) box.append(...walk(one, found, box)); } },
      h("summary", {}, `What the explorer walked: ${many(found.num_edges, "edge")}`));
    return box;
  }

  // The drawing and the table of what was walked, with a button that asks for more than is drawn at first.
  function walk(one, found, box) {
    const depth = new Map(found.topics.map(name => [name, 0])), lines = found.edges.map(([head, relation, tail, step, attention]) => ({ head, relation, tail, step, attention, said: `step ${step}, attention ${attention} %`, weight: attention }));
    for (const { head, tail } of lines) {  // each goes on from what is drawn
      const [near, far] = depth.has(head) ? [head, tail] : [tail, head];
      if (!depth.has(far)) depth.set(far, depth.get(near) + 1);
    }
    const said = `${many(lines.length, "triple")}, of ${many(found.num_edges, "edge")} that the explorer walked: a triple is one for each step and direction; the more attention, the stronger the line; the more probable, the larger the dot`;
    const rows = lines.map(({ head, relation, tail, step, attention }) => [head, relation, tail, String(step), attention.toFixed(1)]);
    const more = found.more && h("button", { type: "button", class: "more", onclick: () => load(found.more).then(whole => {
      box.replaceChildren(box.firstChild, ...walk(one, whole, box));
      box.firstChild.focus();
    }, error => more.replaceWith(h("p", { role: "alert" }, error.message))) }, "Draw more of them");
    return [layered(lines, depth, one, found.nodes, said), more,
      table({ title: "The same as a table", header: ["head", "relation", "tail", "step", "attention, %"], rows, figures_from: 3 }, "walked")].filter(Boolean);
  }

  // A drawing in layers: nodes by their depth, lines between them.
  function layered(edges, depth, one, probability, said) {
    const layers = [];
    for (const [name, at] of depth) (layers[at] = layers[at] || []).push(name);
    const tall = Math.max(...layers.filter(Boolean).map(layer => layer.length)), height = Math.max(120, 26 * tall + 30), wide = 1000, place = new Map();
    const before = new Map();  // the mean height of what leads to a node: sorted by it, fewer edges cross
    layers.forEach((layer, at) => {
      const height_of = name => before.has(name) ? before.get(name).reduce((sum, y) => sum + y, 0) / before.get(name).length : 0;
      layer.sort((a, b) => height_of(a) - height_of(b));
      layer.forEach((name, turn) => place.set(name, [90 + at * (wide - 260) / Math.max(layers.length - 1, 1), (turn + 0.5) * height / layer.length]));
      for (const { head, tail } of edges) for (const [near, far] of [[head, tail], [tail, head]])
        if (depth.get(near) === at && depth.get(far) === at + 1) before.set(far, [...(before.get(far) || []), place.get(near)[1]]);
    });
    const few = edges.length <= 40, golds = new Set(one.golds), short = name => name.length > 28 ? `${name.slice(0, 27)}…` : name;
    const lines = edges.map(({ head, relation, tail, on, said, weight }) => {
      const [x1, y1] = place.get(head), [x2, y2] = place.get(tail), at = x1 < x2 ? 0.7 : 0.3;  // names stand right of their dots
      return h("g", {}, h("path", { class: `edge${on || weight >= 50 ? " on" : ""}`, "stroke-opacity": weight == null ? null : Math.max(0.15, weight / 100), d: x1 === x2 ? `M${x1} ${y1} C${x1 + 60} ${y1} ${x2 + 60} ${y2} ${x2} ${y2}` : `M${x1} ${y1} L${x2} ${y2}` }, h("title", {}, `(${head}, ${relation}, ${tail}): ${said}`)),
        few && h("text", { class: "edge-label", x: x1 + at * (x2 - x1), y: y1 + at * (y2 - y1) - 3, "text-anchor": "middle" }, short(relation)));
    });
    const dots = [...place].map(([name, [x, y]]) => h("g", {}, h("circle", { class: `node${golds.has(name) ? " gold" : ""}${depth.get(name) === 0 ? " topic" : ""}`, cx: x, cy: y, r: 6 + (probability[name] || 0) / 12 }),
      h("text", { x: x + 10, y: y + 4 }, short(name), h("title", {}, probability[name] == null ? name : `${name}: probability ${probability[name]} %`))));
    return h("div", {}, scrolled(said, h("svg", { viewBox: `0 0 ${wide} ${height}`, role: "img", "aria-label": said }, lines, dots)), h("p", { class: "soft" }, said, "."));
  }

  window.addEventListener("hashchange", arrive);
  document.querySelector(".skip").addEventListener("click", event => {  // its address would be another page's
    event.preventDefault();
    document.getElementById("main").focus();
  });
  if (framed != null) document.addEventListener("click", event => {
    const link = event.target.closest("a[href^='#/']");
    if (link) { event.preventDefault(); go(link.getAttribute("href")); }
  });
  document.addEventListener("DOMContentLoaded", show);
  if (document.readyState !== "loading") show();
})();
