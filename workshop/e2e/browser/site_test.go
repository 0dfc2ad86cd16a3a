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

// site is the output directory of workshop/scripts/site.
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

// openSite serves the site and opens a browser in which it is the only origin.
func openSite(t *testing.T) *browser.Browser {
	t.Helper()
	server := httptest.NewServer(http.FileServer(http.Dir(site)))
	t.Cleanup(server.Close)
	b := browser.Open(t)
	b.Origin = server.URL
	b.Paint(t, "light")
	return b
}

func sitePictures(t *testing.T) string {
	t.Helper()
	pictures := filepath.Join(top, ".tools", "site", "pictures")
	if err := os.MkdirAll(pictures, 0o755); err != nil {
		t.Fatal(err)
	}
	return pictures
}

// Every page of the site opens without an error or a request to elsewhere, wide and narrow, light and dark. It fits the
// window, its images are there, and of the bar's entries exactly one is active. The pictures are in
// .tools/site/pictures.
func TestSiteInBrowser(t *testing.T) {
	pages := builtPages(t)
	b := openSite(t)
	pictures := sitePictures(t)
	for _, at := range slices.Sorted(maps.Keys(pages)) {
		b.Visit(t, b.Origin+at, ".vp-doc h1")
		for _, view := range append(views(1280, 1100), view{"narrow-dark", "dark", 390, 1100}) {
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
		active := browser.Ask[[]string](t, b, `[...document.querySelectorAll(".VPNavBarMenuLink.active")].map(e => e.innerText)`)
		if at == "/index.html" && len(active) > 0 || at != "/index.html" && len(active) != 1 {
			t.Errorf("%s: the bar's active entries are %q", at, active)
		}
		if broken := browser.Ask[[]string](t, b, `Promise.all([...document.querySelectorAll(".vp-doc img")].map(i => { i.loading = "eager"; return i.decode().then(() => "", () => i.src) })).then(all => all.filter(Boolean))`); len(broken) > 0 {
			t.Errorf("%s: images are missing: %q", at, broken)
		}
	}

	b.Quiet(t)
}

// At every width with a bar, its entries, the switch of the theme and the link to the repository can be clicked, or are
// in a menu that can.
func TestSiteBarFits(t *testing.T) {
	builtPages(t)
	b := openSite(t)
	b.Visit(t, b.Origin+"/do/rules.html", ".vp-doc h1")
	for _, width := range []int64{390, 768, 960, 1280, 1440, 1920} {
		b.Resize(t, width, 900)
		shown := browser.Ask[[]string](t, b, `[...document.querySelectorAll(".VPNavBarMenuLink, .VPNavBarAppearance button, .VPNavBarSocialLinks a, .VPNavBarExtra > button, .VPNavBarHamburger, .VPNavBarSearch button")]
			.filter(e => e.getBoundingClientRect().width > 0)
			.map(e => { const r = e.getBoundingClientRect(); return [e, document.elementFromPoint(r.x + r.width / 2, r.y + r.height / 2)]; })
			.map(([e, top]) => (e.contains(top) || top?.contains(e) && top.closest("a, button") === e ? "" : "hidden: ") + (e.innerText.trim() || e.className))`)
		for _, control := range shown {
			if strings.HasPrefix(control, "hidden: ") {
				t.Errorf("at %d px a control of the bar is not reachable: %s", width, control)
			}
		}
		want := 2 // the search, and a menu with the other two
		if width >= 1280 {
			want = 3
		}
		if width >= 768 && len(shown) < want+len(barEntries) {
			t.Errorf("at %d px the bar shows only %q", width, shown)
		}
	}
}

// barEntries are the entries of the bar.
var barEntries = []string{"Start", "Rules", "Operate", "Code", "Reference", "Explanation"}

// A search finds the page that answers, also by words that pages do not use.
func TestSiteSearch(t *testing.T) {
	builtPages(t)
	b := openSite(t)
	b.Resize(t, 1280, 1100)
	b.Visit(t, b.Origin+"/", ".vp-doc h1")
	for _, c := range []struct{ words, first string }{
		{"whitelist", "/do/block-or-exempt"},
		{"allowlist", "/do/block-or-exempt"},
		{"block an IP", "/do/block-or-exempt"},
		{"rollback", "/do/upgrade"},
		{"rbac", "/understand/security"},
		{"sidecar", "/do/kubernetes"},
		{"high availability", "/do/redis"},
		{"ban", "/do/block-or-exempt"},
		{"skeleton", "/reference/rule-file"},
		{"canary", "/do/roll-out"},
		{"kubernetes", "/do/kubernetes"},
	} {
		found := browser.Ask[[]string](t, b, fmt.Sprintf(searchFor, c.words))
		t.Logf("%-22s %q", c.words, found[:min(3, len(found))])
		if len(found) == 0 || !strings.HasPrefix(found[0], c.first) {
			t.Errorf("a search for %q finds %q first, want %s", c.words, found, c.first)
		}
	}
	found := browser.Ask[[]string](t, b, fmt.Sprintf(searchFor, "burst"))
	if !slices.ContainsFunc(found, func(link string) bool { return strings.HasPrefix(link, "/do/rules") }) {
		t.Errorf("a search for burst finds %q", found)
	}
	if err := os.WriteFile(filepath.Join(sitePictures(t), "search.png"), b.Picture(t, 1280, 1100), 0o644); err != nil {
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

// searchFor types words into the search and waits, for at most ten seconds, until the results are those of the words:
// the search first shows none for a text that nothing matches.
const searchFor = `(async () => {
	const words = %q, until = Date.now() + 10000;
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
	const type = (text) => { input.value = text; input.dispatchEvent(new Event("input", { bubbles: true })); };
	const results = () => [...document.querySelectorAll(".VPLocalSearchBox a.result")];
	type("");
	await some(() => results().length === 0);
	type(words);
	await some(() => document.querySelector(".VPLocalSearchBox .no-results") || results().length > 0);
	return results().map(r => new URL(r.href).pathname + new URL(r.href).hash);
})()`
