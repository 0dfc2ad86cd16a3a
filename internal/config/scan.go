package config

import (
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/platform/files"
)

const maxDirectories = 32 // maximum depth of directories

// found is one entry of the directory: a rule file, or something that cannot be read.
type found struct {
	name    string  // below the directory, with slashes
	path    string  // path of the content, with symbolic links resolved
	err     error   // why it cannot be read
	nonRule nonRule // why it may not be a rule file, from its name
	dir     bool    // it is a directory: err applies to everything below it

	elsewhere bool // path is not below the directory
}

// equal reports whether two scans found the same.
func (f found) equal(other found) bool {
	sameError := (f.err == nil) == (other.err == nil) && (f.err == nil || f.err.Error() == other.err.Error())
	return sameError && f.name == other.name && f.path == other.path && f.nonRule == other.nonRule && f.dir == other.dir &&
		f.elsewhere == other.elsewhere
}

// scan lists the files below the directory, sorted by name. It fails only if the directory itself cannot be read.
//
// The directory's own path is resolved once, so that a scan sees one release of the rules even while a symbolic link is
// moved to the next one.
func scan(dir string, seen Seen) ([]found, error) {
	root, err := resolve(dir, seen)
	if err != nil {
		return nil, err
	}
	s := scanner{seen: seen, root: root}
	if err := s.directory(root, "", []string{root}); err != nil {
		return nil, err
	}
	slices.SortFunc(s.found, func(a, b found) int { return strings.Compare(a.name, b.name) })
	return s.found, nil
}

type scanner struct {
	seen  Seen
	root  string // the directory, with symbolic links resolved
	found []found
}

// directory lists one directory. within contains the directory and its parents, to detect cycles of links.
func (s *scanner) directory(dir, name string, within []string) error {
	s.seen.Directory(dir)
	entries, err := files.ReadDir(dir)
	if err != nil {
		return err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	for _, e := range entries {
		hidden := strings.HasPrefix(e.Name(), ".")
		if hidden && !e.Type().IsRegular() {
			continue // a ConfigMap's ..data, .git
		}
		s.entry(e.Type(), filepath.Join(dir, e.Name()), path.Join(name, e.Name()), nonRuleOf(e.Name(), names), within)
	}
	return nil
}

func (s *scanner) entry(kind fs.FileMode, at, name string, nonRule nonRule, within []string) {
	var err error
	if kind == fs.ModeSymlink {
		if _, err := files.Lstat(at); os.IsNotExist(err) {
			return // removed since it was listed
		}
		if at, err = resolve(at, s.seen); err == nil {
			kind, err = kindOf(at)
		}
	}
	switch {
	case err != nil:
		if nonRule == "" {
			s.found = append(s.found, found{name: name, err: err})
		}
	case kind.IsDir():
		if slices.Contains(within, at) {
			return
		}
		err := fmt.Errorf("nested directories: more than %d levels", maxDirectories)
		if len(within) < maxDirectories {
			err = s.directory(at, name, append(slices.Clone(within), at))
		}
		if err != nil && !os.IsNotExist(err) {
			s.found = append(s.found, found{name: name, err: err, dir: true})
		}
	case kind.IsRegular():
		below := strings.HasPrefix(at, strings.TrimSuffix(s.root, string(filepath.Separator))+string(filepath.Separator))
		s.found = append(s.found, found{name: name, path: at, nonRule: nonRule, elsewhere: !below})
	}
}

func kindOf(path string) (fs.FileMode, error) {
	info, err := files.Stat(path)
	if err != nil {
		return 0, err
	}
	return info.Mode().Type(), nil
}

// sum is the hash of a file's content.
type sum [sha256.Size]byte

// sumFile hashes a file without keeping it in memory.
func sumFile(path string, limit int64) (sum, error) {
	return files.Use(path, func(f *os.File) (sum, error) {
		h := sha256.New()
		n, err := io.Copy(h, io.LimitReader(f, limit+1))
		if err != nil {
			return sum{}, err //nolint:wrapcheck // it names the file
		}
		if n > limit {
			return sum{}, tooLarge(limit)
		}
		return sum(h.Sum(nil)), nil
	})
}

func readFile(path string, limit int64) ([]byte, error) {
	return files.Use(path, func(f *os.File) ([]byte, error) {
		data, err := io.ReadAll(io.LimitReader(f, limit+1))
		if err == nil && int64(len(data)) > limit {
			return nil, tooLarge(limit)
		}
		return data, err //nolint:wrapcheck // it names the file
	})
}

func sumOf(data []byte) sum { return sha256.Sum256(data) }

func tooLarge(limit int64) error {
	return fmt.Errorf("larger than %d bytes: split it into several files", limit)
}
