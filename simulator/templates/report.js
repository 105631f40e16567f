"use strict";
// The slider over the page-pool map: one strip of cells an allocator, at the chosen instant.
(() => {
  const maps = JSON.parse(document.getElementById("pool-maps").textContent);
  const range = document.getElementById("instant");
  if (!range || !maps.length) return;
  const colours = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#e3d026", "#8c510a", "#5ab4ac"];
  const FREE = -1, CACHED = -2, SHARED = -3, COLUMNS = 64, CELL = 10;
  const words = document.getElementById("slider").dataset;
  const end = Math.max(...maps.map((map) => map.end));
  range.max = String(range.dataset.steps);

  for (const map of maps) {
    map.cells = new Int32Array(map.addresses * map.times.length);
    let at = 0;
    for (let i = 0; i < map.runs.length; i += 2) {
      map.cells.fill(map.runs[i], at, at + map.runs[i + 1]);
      at += map.runs[i + 1];
    }
  }
  const colour = (owner, style) => {
    if (owner >= 0) return colours[owner % colours.length];
    return owner === CACHED ? "#9aa4af" : owner === SHARED ? "#7a3ff2" : style.getPropertyValue("--card");
  };
  // A line over each panel of the map, at the instant shown below; the panels are the pictures in the picture.
  const picture = document.querySelector("#pool_map > svg");
  const panels = picture ? [...picture.querySelectorAll("image")] : [];
  const cursors = panels.length < maps.length ? [] : maps.map(() => {
    const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    line.setAttribute("class", "cursor");
    return picture.appendChild(line);
  });
  const place = (line, panel, share) => {
    const box = panel.getBoundingClientRect();
    const there = picture.getScreenCTM().inverse();
    const at = (x, y) => new DOMPoint(x, y).matrixTransform(there);
    const [top, bottom] = [at(box.left + share * box.width, box.top), at(box.left + share * box.width, box.bottom)];
    for (const [name, value] of Object.entries({ x1: top.x, y1: top.y, x2: bottom.x, y2: bottom.y })) {
      line.setAttribute(name, value.toFixed(2));
    }
  };
  const percent = (part, whole) => `${(100 * part / whole).toFixed(part && part < whole / 10 ? 1 : 0)}\u00a0%`;

  const show = () => {
    const time = end * Number(range.value) / Number(range.max);
    const style = getComputedStyle(document.documentElement);
    document.getElementById("instant-text").textContent = `t = ${time < 300 ? time.toFixed(2) + " s" : (time / 60).toFixed(1) + " min"}`;
    maps.forEach((map, index) => {
      if (cursors.length) place(cursors[index], panels[index], Math.min(1, time / map.end));
      let instant = map.times.length - 1;
      while (instant > 0 && map.times[instant] > time) instant -= 1;
      const canvas = document.getElementById(`strip-${index}`);
      canvas.width = COLUMNS * CELL;
      canvas.height = Math.ceil(map.addresses / COLUMNS) * CELL;
      const pen = canvas.getContext("2d");
      let free = 0, cached = 0, shared = 0, piece = 0, longest = 0;
      const holders = new Set();
      for (let address = 0; address < map.addresses; address += 1) {
        const owner = map.cells[address * map.times.length + instant];
        pen.fillStyle = colour(owner, style);
        pen.fillRect((address % COLUMNS) * CELL, Math.floor(address / COLUMNS) * CELL, CELL - 1, CELL - 1);
        piece = owner === FREE ? piece + 1 : 0;
        longest = Math.max(longest, piece);
        if (owner === FREE) free += 1;
        else if (owner === CACHED) cached += 1;
        else if (owner === SHARED) shared += 1;
        else holders.add(owner);
      }
      const all = map.addresses;
      document.getElementById(`strip-text-${index}`).textContent =
        map.name + words.colon + [
          `${words.held} ${percent(all - free - cached, all)}`, `${words.requests} ${holders.size}`,
          `${words.shared} ${percent(shared, all)}`, `${words.cached} ${percent(cached, all)}`,
          `${words.free} ${percent(free, all)}`, `${words.longest} ${percent(longest, all)}`,
        ].join(words.comma);
    });
  };
  range.addEventListener("input", show);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
})();
