package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"io/fs"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/platform/javascript"
)

// Path is where the console is.
const Path = "/console/"

//go:embed files
var own embed.FS

var types = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".mjs":  "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// file is a file of the console, ready to be sent.
type file struct {
	kind       string
	plain, zip form
	forever    bool // the path changes with the content
}

// form is the bytes of a file as they are sent, and their ETag.
type form struct {
	body []byte
	tag  string
}

func newForm(body []byte) form {
	sum := sha256.Sum256(body)
	return form{body, `"` + hex.EncodeToString(sum[:8]) + `"`}
}

// site is all files by path, and the policy of the page.
type site struct {
	files    map[string]*file
	security string
}

// load makes the site when a browser first asks. All files but the page are below a path that changes when one of them
// does, so that browsers may keep them.
var load = sync.OnceValue(func() *site {
	content := make(map[string][]byte)
	for prefix, from := range map[string]embed.FS{"": own, "lib/": javascript.Files} {
		_ = fs.WalkDir(from, ".", func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || types[path.Ext(name)] == "" {
				return err
			}
			text, err := from.ReadFile(name)
			content[prefix+strings.TrimPrefix(name, "files/")] = text
			return err
		}) // the files are embedded, so reading them cannot fail
	}
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(content)) {
		h.Write([]byte(name + "\x00"))
		h.Write(content[name])
	}
	version := hex.EncodeToString(h.Sum(nil)[:8])
	s := &site{files: make(map[string]*file)}
	for name, text := range content {
		at := Path + version + "/" + name
		if name == "index.html" {
			at = Path
			text = bytes.ReplaceAll(text, []byte("{version}"), []byte(version))
			s.security = contentSecurity(text)
		}
		s.files[at] = newFile(path.Ext(name), text, at != Path)
	}
	return s
})

func newFile(ext string, text []byte, forever bool) *file {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(text) // into memory
	_ = z.Close()
	return &file{kind: types[ext], plain: newForm(text), zip: newForm(b.Bytes()), forever: forever}
}

// contentSecurity is the Content Security Policy of the page. The only script in the page itself is the import map,
// whose hash is in the policy.
func contentSecurity(page []byte) string {
	_, after, _ := bytes.Cut(page, []byte(`<script type="importmap">`))
	imports, _, _ := bytes.Cut(after, []byte("</script>"))
	sum := sha256.Sum256(imports)
	return "default-src 'none'; script-src 'self' 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; style-src 'self'; " +
		"img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; " +
		"require-trusted-types-for 'script'; trusted-types 'none'"
}

// IsFile reports whether a request asks for a file of the console. These are the same for everybody.
func IsFile(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && load().files[r.URL.Path] != nil &&
		strings.HasPrefix(r.URL.Path, Path)
}

// Files answers requests for the console's files.
func Files(w http.ResponseWriter, r *http.Request) {
	s := load()
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Content-Security-Policy", s.security)
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	f := s.files[r.URL.Path]
	switch {
	case f == nil:
		h.Set("Cache-Control", "no-store")
		http.Error(w, "there is no such file: the console starts at "+Path, http.StatusNotFound)
		return
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "use GET", http.StatusMethodNotAllowed)
		return
	}
	h.Set("Content-Type", f.kind)
	h.Set("Vary", "Accept-Encoding")
	h.Set("Cache-Control", "no-cache")
	if f.forever {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	as := f.plain
	if accepts(r, "gzip") {
		h.Set("Content-Encoding", "gzip")
		as = f.zip
	}
	h.Set("ETag", as.tag)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(as.body))
}

func accepts(r *http.Request, coding string) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, q, _ := strings.Cut(part, ";")
		if strings.TrimSpace(name) == coding && strings.ReplaceAll(q, " ", "") != "q=0" {
			return true
		}
	}
	return false
}
