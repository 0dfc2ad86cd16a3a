//go:build linux

package containers

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// An image is made of files of this machine.
type image struct {
	w    *tar.Writer
	f    *os.File
	seen map[string]bool
}

func newImage(t *testing.T, file string) *image {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	i := &image{w: tar.NewWriter(f), f: f, seen: make(map[string]bool)}
	for _, dir := range []string{"/bin", "/sbin", "/lib", "/lib64"} { // links to directories of /usr, on most machines
		if to, err := os.Readlink(dir); err == nil {
			i.header(t, &tar.Header{Typeflag: tar.TypeSymlink, Name: dir[1:], Linkname: to, Mode: 0o777})
		}
	}
	i.directory(t, "/tmp", 0, 0o1777)
	return i
}

func (i *image) close(t *testing.T) {
	t.Helper()
	if err := errors.Join(i.w.Close(), i.f.Close()); err != nil {
		t.Fatal(err)
	}
}

func (i *image) header(t *testing.T, h *tar.Header) {
	t.Helper()
	if err := i.w.WriteHeader(h); err != nil {
		t.Fatal(err)
	}
}

func (i *image) directory(t *testing.T, name string, owner int, mode int64) {
	t.Helper()
	i.header(t, &tar.Header{Typeflag: tar.TypeDir, Name: name[1:], Mode: mode, Uid: owner, Gid: owner})
}

func (i *image) text(t *testing.T, name, text string) {
	t.Helper()
	i.header(t, &tar.Header{Name: name[1:], Mode: 0o755, Size: int64(len(text))})
	if _, err := io.WriteString(i.w, text); err != nil {
		t.Fatal(err)
	}
}

// file copies a file of this machine.
func (i *image) file(t *testing.T, name, from string) {
	t.Helper()
	f, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	i.header(t, &tar.Header{Name: name[1:], Mode: int64(info.Mode().Perm()), Size: info.Size()})
	if _, err := io.Copy(i.w, f); err != nil {
		t.Fatal(err)
	}
}

// tree copies the files of a directory that keep wants.
func (i *image) tree(t *testing.T, name, from string, keep func(path string) bool) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch {
		case !keep(inside) && d.IsDir():
			return filepath.SkipDir
		case keep(inside) && d.Type().IsRegular():
			i.file(t, filepath.Join(name, inside), path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

var library = regexp.MustCompile(`(/\S+) \(0x`)

// program copies a program of this machine with its libraries. Where it is in the image is returned.
func (i *image) program(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.Command("ldd", path).CombinedOutput()
	if err != nil && !strings.Contains(string(out), "not a dynamic executable") {
		t.Fatalf("ldd %s: %v\n%s", path, err, out)
	}
	for _, m := range library.FindAllStringSubmatch(string(out), -1) {
		directory, err := filepath.EvalSymlinks(filepath.Dir(m[1])) // /lib is a link in the image too
		if err != nil {
			t.Fatal(err)
		}
		if name := filepath.Join(directory, filepath.Base(m[1])); !i.seen[name] {
			i.seen[name] = true
			i.file(t, name, name)
		}
	}
	name := "/usr/bin/" + filepath.Base(path)
	i.file(t, name, path)
	return name
}

const prometheusUser = 65534 // the user ID in Prometheus' own image

// imagesOf builds the images that docker-compose.yml and the Dockerfile name. They are files: a daemon imports them.
func imagesOf(t *testing.T, directory string) {
	t.Helper()
	programs := map[string][]string{
		"redis":      {lookup(t, "redis-server", "workshop/scripts/install-redis"), lookup(t, "redis-cli", "workshop/scripts/install-redis"), lookup(t, "bash", "")},
		"envoy":      {envoy(t), lookup(t, "bash", ""), lookup(t, "grep", "")},
		"prometheus": {lookup(t, "prometheus", "workshop/scripts/install-promtool")},
	}
	for name, paths := range programs {
		i := newImage(t, filepath.Join(directory, name+".tar"))
		for _, path := range paths {
			i.program(t, path)
		}
		switch name {
		case "redis": // Redis' own image is built without protected mode
			i.text(t, "/entrypoint", "#!/usr/bin/bash\nexec \"$@\" --protected-mode no\n")
		case "prometheus":
			i.directory(t, "/prometheus", prometheusUser, 0o755)
		}
		i.close(t)
	}
	goImage(t, filepath.Join(directory, "go.tar"))
}

// lookup finds a program that an image is made of. Without it nothing is tested.
func lookup(t *testing.T, name, script string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skip(skipped + name + ": " + script + " gets it")
	}
	return path
}

func envoy(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("E2E_ENVOY"); path != "" {
		return path
	}
	found, _ := filepath.Glob("../../.tools/envoy/*/envoy/_bin/envoy")
	if len(found) == 0 {
		t.Skip(skipped + "Envoy: workshop/scripts/install-envoy gets it")
	}
	return found[len(found)-1]
}

// goImage builds the image in which the Dockerfile builds: Go, the commands that workshop/scripts/rootfs calls, and the
// modules of go.mod, because nothing can be downloaded in the daemon's name space.
func goImage(t *testing.T, file string) {
	t.Helper()
	i := newImage(t, file)
	defer i.close(t)
	for _, name := range []string{"sh", "bash", "env", "dirname", "mkdir", "chmod", "ln", "rm", "cp"} {
		i.program(t, lookup(t, name, "the package manager"))
	}
	i.tree(t, "/usr/local/go", goEnv(t, "GOROOT"), func(path string) bool {
		first, _, _ := strings.Cut(path, "/")
		return first != "test" && first != "api" && first != "doc" && !strings.HasSuffix(path, "_test.go")
	})
	if bundle := "/etc/ssl/certs/ca-certificates.crt"; exists(bundle) {
		i.file(t, bundle, bundle)
	}
	cache := filepath.Join(goEnv(t, "GOMODCACHE"), "cache", "download")
	for _, m := range modules(t) {
		base := filepath.Join(escape(m.Path), "@v", escape(m.Version))
		for _, suffix := range []string{".mod", ".info", ".zip"} {
			from := filepath.Join(cache, base+suffix)
			if !exists(from) || suffix == ".zip" && !m.listed {
				continue
			}
			i.file(t, filepath.Join("/modules", base+suffix), from)
		}
	}
}

type module struct {
	Path, Version string
	listed        bool // whether go.mod lists it; its files then show which module has a package
}

// modules lists the modules in the service's module graph, and downloads the modules in go.mod.
func modules(t *testing.T) (all []module) {
	t.Helper()
	decoded := func(args ...string) (all []module) {
		cmd := exec.Command("go", args...)
		cmd.Dir = "../.."
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go %q: %v", args, err)
		}
		for d := json.NewDecoder(bytes.NewReader(out)); ; {
			var m module
			if err := d.Decode(&m); errors.Is(err, io.EOF) {
				return all
			} else if err != nil {
				t.Fatal(err)
			}
			all = append(all, m)
		}
	}
	listed := make(map[string]bool)
	for _, m := range decoded("mod", "download", "-json") {
		listed[m.Path] = true
	}
	for _, m := range decoded("list", "-m", "-json", "all") {
		if m.Version != "" { // it is not the service's own
			m.listed = listed[m.Path]
			all = append(all, m)
		}
	}
	return all
}

// escape writes a module's path or version as the module cache does.
func escape(s string) string {
	var b strings.Builder
	for _, r := range s {
		if 'A' <= r && r <= 'Z' {
			b.WriteByte('!')
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// importImages imports images into the daemon, each with the settings of the published image that it replaces.
func (d *docker) importImages(t *testing.T, names map[string]string) {
	t.Helper()
	for name, changes := range map[string][]string{
		"redis":      {`ENTRYPOINT ["/entrypoint"]`, "VOLUME /data", "WORKDIR /data"},
		"envoy":      nil,
		"prometheus": {`ENTRYPOINT ["/usr/bin/prometheus", "--storage.tsdb.path=data"]`, "VOLUME /prometheus", "WORKDIR /prometheus", fmt.Sprintf("USER %[1]d:%[1]d", prometheusUser)},
		"go":         {"ENV GOPATH=/go GOPROXY=file:///modules GOTOOLCHAIN=local HOME=/root", "ENV PATH=/usr/local/go/bin:/usr/bin"},
	} {
		if names[name] == "" {
			t.Fatal(fmt.Errorf("no file names an image of %s", name))
		}
		file := filepath.Join(d.directory, name+".tar")
		d.image(t, names[name], file, changes...)
		if err := os.Remove(file); err != nil { // some are large
			t.Fatal(err)
		}
	}
}
