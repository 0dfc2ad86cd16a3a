// The form that asks for a descriptor, or for a value.
import { useEffect, useState } from "preact/hooks";
import { get, live, token } from "./api.js";
import { html, visible, Problem, readDescriptor, writeEntries, useLoad, link } from "./parts.js";

const mostRules = 500; // that are offered

// rulesOf loads the rules of a domain.
const rulesOf = async (domain, signal) => (await get("rules?" + new URLSearchParams({ limit: mostRules, domain }), { signal })).rules;

export const domains = () => (live.value ? live.value.rules.domains : []);

// Domain offers the domains that exist. Of very many domains, the page knows only some: then the name can be typed.
export function Domain({ value, set, any = "" }) {
  const all = domains();
  return html`<label>Domain${all.length < 100 ? html`<select name="domain" value=${value} onChange=${(e) => set(e.target.value)}>
      ${(any || all.length !== 1) && html`<option value="">${any || "choose…"}</option>`}
      ${(value && !all.includes(value) ? [value, ...all] : all).map((d) => html`<option key=${d} value=${d}>${offered(d)}</option>`)}</select>`
    : html`<input name="domain" list="domains" value=${value} onInput=${(e) => set(e.target.value)} autocomplete="off" spellcheck=${false} />
      <datalist id="domains">${all.map((d) => html`<option value=${d} />`)}</datalist>`}</label>`;
}

const offered = (text) => visible(text).slice(0, 100); // as a choice

const ruleName = (r) => offered(r.levels.map((l) => l.key + (l.value && "=" + l.value)).join(", "));

// Ask is the form for a descriptor: a field for each key of a rule, or a text. find: a text that is only a value is searched for.
export function Ask({ page, asked, action, find, value = "", matched }) {
  const [domain, setDomain] = useState(asked.domain);
  const [rule, setRule] = useState(null); // the path of the chosen one; empty: the entries are written as a text
  const [entries, setEntries] = useState(asked.entries);
  const [text, setText] = useState(value);
  const [error, setError] = useState("");
  useEffect(() => { setDomain(asked.domain); setEntries(asked.entries); setText(value); setError(""); setRule(null); }, [JSON.stringify([asked, value])]);
  const of = domain || (domains().length === 1 ? domains()[0] : "");
  const rules = useLoad((signal) => (of ? rulesOf(of, signal) : Promise.resolve([])), of + (live.value ? live.value.rules.checksum : "") + token.value).data || [];
  const chosen = rules.find((r) => r.path === (rule === null ? matched : rule));
  const written = !chosen && (rule === "" || !entries.length);
  const choose = (path) => {
    const r = rules.find((x) => x.path === path);
    if (r) setEntries(r.levels.map((l) => ({ key: l.key, value: l.exact ? l.value : (entries.find((e) => e.key === l.key) || {}).value || "" })));
    else setText(writeEntries(entries));
    setRule(path);
  };
  const submit = (e) => {
    e.preventDefault();
    try {
      const read = written ? readDescriptor(text) : { entries };
      if (find && read.entries.length === 1 && !read.entries[0].value) {
        location.hash = "#/" + page + "?" + new URLSearchParams({ domain, value: read.entries[0].key });
        return;
      }
      const empty = rule && entries.find((e) => !e.value);
      if (empty) throw new Error("Enter a value for " + empty.key + ".");
      if (!read.entries.length) throw new Error("Which entries? Choose a rule, or write each entry on a line, as key=value.");
      if (!(read.domain || of)) throw new Error("Enter a domain.");
      setError("");
      location.hash = link(page, read.domain || of, read.entries);
    } catch (e) {
      setError(e instanceof SyntaxError ? "This looks like JSON, but is not: " + e.message : e.message);
    }
  };
  const keys = (e) => { if (e.key === "Enter" && (e.ctrlKey || e.metaKey || !text.includes("\n") && !e.shiftKey)) submit(e); };
  return html`<form class="form" onSubmit=${submit}>
    <${Domain} value=${of} set=${(d) => { setDomain(d); setRule(null); }} any=${find && "any"} />
    ${rules.length > 0 && html`<label>Rule<select name="rule" value=${chosen ? chosen.path : written ? "" : "-"} onChange=${(e) => choose(e.target.value)}>
      <option value="">${find ? "any" : "as written"}</option>${!written && !chosen && html`<option value="-">–</option>`}
      ${rules.map((r) => html`<option key=${r.path} value=${r.path}>${ruleName(r)}</option>`)}</select></label>`}
    ${written ? html`<label class="grow">${find ? "A value, such as a customer’s number; or entries" : "Entries"}, one per line as key=value; or a counter’s key; or a request as JSON
      <textarea name="entries" rows=${Math.min(8, Math.max(1, text.split("\n").length))} value=${text} onInput=${(e) => setText(e.target.value)} onKeyDown=${keys} spellcheck=${false} /></label>`
    : entries.map((e, i) => html`<label key=${i}>${offered(e.key)}<input name="value" value=${e.value} placeholder=${chosen && chosen.levels[i] ? chosen.levels[i].value : ""}
      onInput=${(x) => setEntries(entries.map((old, j) => (j === i ? { key: old.key, value: x.target.value } : old)))} autocomplete="off" spellcheck=${false} /></label>`)}
    <button class="main">${action}</button>
    <div class="outcome"><${Problem} error=${error} /></div>
  </form>`;
}
