// Keeps an open page up to date: reloads its content when the controller reports a change, and updates the ages of
// times. Without it the page has to be reloaded.
"use strict";
(() => {
  const events = document.currentScript.dataset.events;
  const pause = 1000; // minimum between two updates
  const pollPause = 15000; // between two updates without an event stream
  let busy = false;
  let again = false;

  const live = (text) => { document.getElementById("live").textContent = text; };

  async function renew() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(10000) });
      if (answer.ok) {
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
        replace("main", fresh);
        replace("footer", fresh);
        live(fresh.getElementById("live").textContent + ", updates itself");
      } else {
        live(answer.status === 404 ? "it does not exist any more; this is the last known state" : "the controller returned status " + answer.status);
      }
    } catch {
      live("the controller does not respond; this is the last known state");
    }
    setTimeout(() => { busy = false; if (again) { again = false; renew(); } }, pause);
  }

  // Keeps selected text and the focus.
  function replace(name, fresh) {
    const old = document.querySelector(name);
    const next = fresh.querySelector(name);
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
      // After an error response the browser does not reconnect by itself.
      if (source.readyState === EventSource.CLOSED) setTimeout(() => { renew(); listen(); }, pollPause);
      else live("connection to the controller lost; this is the last known state");
    };
  }

  setInterval(grow, 5000);
  live(document.getElementById("live").textContent + ", updates itself");
  listen();
})();
