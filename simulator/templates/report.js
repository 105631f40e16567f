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
  const percent = (part, whole) => `${(100 * part / whole).toFixed(part && part < whole / 10 ? 1 : 0)} %`;

  const show = () => {
    const time = end * Number(range.value) / Number(range.max);
    const style = getComputedStyle(document.documentElement);
    document.getElementById("instant-text").textContent = `t = ${time < 300 ? time.toFixed(2) + " s" : (time / 60).toFixed(1) + " min"}`;
    maps.forEach((map, index) => {
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
        `${map.name}: ${words.held} ${percent(all - free - cached, all)}, ${words.requests} ${holders.size}, ` +
        `${words.shared} ${percent(shared, all)}, ${words.cached} ${percent(cached, all)}, ` +
        `${words.free} ${percent(free, all)}, ${words.longest} ${percent(longest, all)}`;
    });
  };
  range.addEventListener("input", show);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
})();
