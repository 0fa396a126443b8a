// Keeps an open page up to date: asks for it again when the controller says that something has changed, and lets the
// ages of its times grow meanwhile. Without it, the page is the same and has to be loaded again.
"use strict";
(() => {
  const events = document.currentScript.dataset.events;
  const pause = 1000; // between two looks, however much changes
  const alone = 15000; // between two looks while nobody tells of changes
  let busy = false;
  let again = false;

  const live = (text) => { document.getElementById("live").textContent = text; };

  async function renew() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(10000) });
      if (answer.ok) {
        const drawn = new DOMParser().parseFromString(await answer.text(), "text/html");
        replace("main", drawn);
        replace("footer", drawn);
        live(drawn.getElementById("live").textContent + ", updates itself");
      } else {
        live(answer.status === 404 ? "it is gone; this is how it stood" : "the controller answers " + answer.status);
      }
    } catch {
      live("the controller does not answer; this is how it stood");
    }
    setTimeout(() => { busy = false; if (again) { again = false; renew(); } }, pause);
  }

  // Whoever has marked some text is reading, and whoever stands on a link stays there.
  function replace(name, drawn) {
    const old = document.querySelector(name);
    const next = drawn.querySelector(name);
    if (!next || String(getSelection()).trim()) return;
    const focus = old.contains(document.activeElement) ? document.activeElement : null;
    const key = focus && (focus.getAttribute("href") || focus.getAttribute("aria-label"));
    const scrolled = [...old.querySelectorAll(".table")].map((it) => it.scrollLeft);
    old.replaceChildren(...next.childNodes);
    [...old.querySelectorAll(".table")].forEach((it, index) => { it.scrollLeft = scrolled[index] || 0; });
    if (key) {
      const same = (it) => it.getAttribute("href") === key || it.getAttribute("aria-label") === key;
      const found = [...old.querySelectorAll("a, [tabindex]")].find(same);
      if (found) found.focus({ preventScroll: true });
    }
  }

  function length(seconds) {
    if (seconds < 60) return seconds + " s";
    const minutes = Math.floor(seconds / 60);
    const rest = (count, unit) => (count ? " " + count + unit : "");
    if (minutes < 60) return minutes + " min" + rest(seconds % 60, " s");
    const hours = Math.floor(minutes / 60);
    if (hours < 24) return hours + " h" + rest(minutes % 60, " min");
    return Math.floor(hours / 24) + " d" + rest(hours % 24, " h");
  }

  function grow() {
    for (const time of document.querySelectorAll("time")) {
      const ago = time.querySelector(".ago");
      const seconds = Math.floor((Date.now() - Date.parse(time.dateTime)) / 1000);
      if (ago) ago.textContent = seconds < 1 ? "(just now)" : "(" + length(seconds) + " ago)";
    }
  }

  function listen() {
    const source = new EventSource(events);
    source.addEventListener("changed", renew);
    source.onerror = () => {
      // A browser that was refused does not ask again by itself.
      if (source.readyState === EventSource.CLOSED) setTimeout(() => { renew(); listen(); }, alone);
      else live("connection to the controller lost; this is the last known state");
    };
  }

  setInterval(grow, 5000);
  live(document.getElementById("live").textContent + ", updates itself");
  listen();
})();
