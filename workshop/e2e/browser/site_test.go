package browser_test

import (
	"flag"
	"fmt"
	"html"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/workshop/e2e/browser"
)

var update = flag.Bool("update", false, "take the pictures of the documentation")

// top is the repository's root.
const top = "../../.."

// site is what workshop/scripts/site builds.
const site = top + "/.tools/site/dist"

var (
	siteLink = regexp.MustCompile(`(?:href|src)="([^"]*)"`)
	siteID   = regexp.MustCompile(`\bid="([^"]*)"`)
)

// builtPages returns the site's pages by their path in it.
func builtPages(t *testing.T) map[string]string {
	t.Helper()
	if os.Getenv("RATELIMITD_SITE") == "" {
		t.Skip("NOT RUN without the built site: make site builds it and runs this test")
	}
	pages := make(map[string]string)
	err := filepath.WalkDir(site, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(name) != ".html" || d.Name() == "404.html" {
			return err
		}
		text, err := os.ReadFile(name)
		at, _ := filepath.Rel(site, name)
		pages["/"+filepath.ToSlash(at)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(pages) < 35 {
		t.Fatalf("the site has %d pages", len(pages))
	}
	return pages
}

// Every link of the site leads to a page or a file of it, and to an element there.
func TestSiteLinks(t *testing.T) {
	pages := builtPages(t)
	links := 0
	for at, text := range pages {
		base := &url.URL{Path: at}
		for _, m := range siteLink.FindAllStringSubmatch(text, -1) {
			u, err := base.Parse(html.UnescapeString(m[1]))
			if err != nil {
				t.Errorf("%s: %v", at, err)
				continue
			}
			if u.Scheme != "" || u.Host != "" {
				continue // leads out of the site
			}
			links++
			target := u.Path
			if strings.HasSuffix(target, "/") {
				target += "index.html"
			}
			if _, err := os.Stat(filepath.Join(site, filepath.FromSlash(target))); err != nil {
				t.Errorf("%s links to %s: %v", at, m[1], err)
				continue
			}
			if u.Fragment != "" && !slices.ContainsFunc(siteID.FindAllStringSubmatch(pages[target], -1), func(id []string) bool { return html.UnescapeString(id[1]) == u.Fragment }) {
				t.Errorf("%s links to %s: no element has this id", at, m[1])
			}
		}
	}
	if links < 1000 {
		t.Errorf("only %d links", links)
	}
}

// Every page of the site opens without an error or a request to elsewhere, wide, narrow and dark. It fits the window, and
// its images are there. The pictures are in .tools/site/pictures.
func TestSiteInBrowser(t *testing.T) {
	pages := builtPages(t)
	server := httptest.NewServer(http.FileServer(http.Dir(site)))
	t.Cleanup(server.Close)
	b := browser.Open(t)
	b.Origin = server.URL
	pictures := filepath.Join(top, ".tools", "site", "pictures")
	if err := os.MkdirAll(pictures, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, at := range slices.Sorted(maps.Keys(pages)) {
		b.Visit(t, server.URL+at, ".vp-doc h1")
		for _, view := range views(1360, 1100) {
			view.show(t, b)
			if wide := browser.Ask[int64](t, b, "document.documentElement.scrollWidth"); wide > view.width {
				t.Errorf("%s, %s: the page is %d wide in a window of %d; the widest: %s", at, view.name, wide, view.width, browser.Ask[string](t, b, widest))
			}
			if dark := browser.Ask[bool](t, b, `document.documentElement.classList.contains("dark")`); dark != (view.scheme == "dark") {
				t.Errorf("%s, %s: dark is %t", at, view.name, dark)
			}
			name := strings.ReplaceAll(strings.Trim(strings.TrimSuffix(at, path.Ext(at)), "/"), "/", "-")
			if err := os.WriteFile(filepath.Join(pictures, name+"-"+view.name+".png"), b.Picture(t, view.width, view.height), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if broken := browser.Ask[[]string](t, b, `Promise.all([...document.querySelectorAll(".vp-doc img")].map(i => { i.loading = "eager"; return i.decode().then(() => "", () => i.src) })).then(all => all.filter(Boolean))`); len(broken) > 0 {
			t.Errorf("%s: images are missing: %q", at, broken)
		}
	}

	b.Paint(t, "light")
	b.Resize(t, 1360, 1100)
	b.Visit(t, server.URL+"/", ".vp-doc h1")
	found := browser.Ask[[]string](t, b, fmt.Sprintf(searchFor, "burst"))
	if !slices.ContainsFunc(found, func(link string) bool { return strings.HasPrefix(link, "/do/rules") }) {
		t.Errorf("a search for burst finds %q", found)
	}
	if err := os.WriteFile(filepath.Join(pictures, "search.png"), b.Picture(t, 1360, 1100), 0o644); err != nil {
		t.Fatal(err)
	}
	if found := browser.Ask[[]string](t, b, fmt.Sprintf(searchFor, "qzxjv")); len(found) > 0 {
		t.Errorf("a search for a word that no page has finds %q", found)
	}
	b.Quiet(t)
}

// widest is the text of the element that reaches furthest to the right.
const widest = `[...document.querySelectorAll(".vp-doc *")].filter(e => !e.closest("pre, table")).concat([...document.querySelectorAll("pre, table")])
	.map(e => [e.getBoundingClientRect().right, e]).sort((a, b) => b[0] - a[0]).slice(0, 1)
	.map(([right, e]) => e.tagName + " " + e.innerText.slice(0, 80)).join()`

// searchFor types a word into the search and waits, for at most ten seconds, until the results belong to it.
const searchFor = `(async () => {
	const word = %q, until = Date.now() + 10000;
	const some = async (look) => {
		for (;;) {
			const found = look();
			if (found || Date.now() > until) return found;
			await new Promise(next => requestAnimationFrame(next));
		}
	};
	if (!document.querySelector(".VPLocalSearchBox")) {
		const button = await some(() => document.querySelector(".VPNavBarSearch button"));
		await some(() => { button.click(); return document.querySelector(".VPLocalSearchBox input"); });
	}
	const input = document.querySelector(".VPLocalSearchBox input");
	input.value = word;
	input.dispatchEvent(new Event("input", { bubbles: true }));
	const results = () => [...document.querySelectorAll(".VPLocalSearchBox a.result")];
	await some(() => document.querySelector(".VPLocalSearchBox .no-results") || results().some(r => r.innerText.toLowerCase().includes(word)));
	return results().map(r => new URL(r.href).pathname);
})()`
