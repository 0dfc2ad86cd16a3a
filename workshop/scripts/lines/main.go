// Command lines counts what people have to read: lines of code without comments and blank lines, and words of documents,
// for every wing of the repository. `make lines` runs it.
//
// A wing is a directory of the top level, or one below internal or workshop. scc counts; it is pinned in workshop/tools/lines. Generated code,
// minified JavaScript and recorded data of tests are not counted.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	files, err := tracked(ctx)
	if err == nil {
		err = lines(ctx, files, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lines:", err)
		os.Exit(1)
	}
}

// lines counts these files and prints the table.
func lines(ctx context.Context, files []string, out io.Writer) error {
	counted, err := count(ctx, files)
	if err != nil {
		return err
	}
	var t table
	for _, name := range files {
		if strings.HasSuffix(name, ".md") && !recorded(name) {
			text, err := os.ReadFile(name)
			if err != nil {
				return fmt.Errorf("count words: %w", err)
			}
			t.add(name, words, file{Code: len(bytes.Fields(text))})
			continue
		}
		if f, ok := counted[name]; ok && f.Code > 0 {
			if col, ok := columnOf(name, f); ok {
				t.add(name, col, f)
			}
		}
	}
	return t.print(out)
}

// tracked returns the files of the repository, including files that git does not track yet.
func tracked(ctx context.Context) ([]string, error) {
	text, err := output(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return nil, err
	}
	var files []string
	for name := range strings.SplitSeq(strings.TrimRight(string(text), "\x00"), "\x00") {
		if info, err := os.Lstat(name); err == nil && info.Mode().IsRegular() { // others were deleted, or are links
			files = append(files, name)
		}
	}
	return files, nil
}

// file is what scc says about a file.
type file struct {
	Location, Language  string
	Code, Lines         int // Lines has comments and blank lines too
	Generated, Minified bool
}

// count asks scc. A file whose language it does not know is not in the answer.
func count(ctx context.Context, files []string) (map[string]file, error) {
	args := append([]string{"tool", "-modfile=workshop/tools/lines/go.mod", "scc", "--by-file", "--format", "json", "--no-complexity", "--min-gen", "--"}, files...)
	text, err := output(ctx, "go", args...)
	if err != nil {
		return nil, err
	}
	var languages []struct{ Files []file }
	if err := json.Unmarshal(text, &languages); err != nil {
		return nil, fmt.Errorf("read what scc says: %w", err)
	}
	counted := make(map[string]file)
	for _, l := range languages {
		for _, f := range l.Files {
			counted[f.Location] = f
		}
	}
	return counted, nil
}

// output runs a command. Its error has what the command printed.
func output(ctx context.Context, name string, args ...string) ([]byte, error) {
	text, err := exec.CommandContext(ctx, name, args...).Output()
	if failed := new(exec.ExitError); errors.As(err, &failed) {
		return nil, fmt.Errorf("run %s: %w\n%s", name, err, failed.Stderr)
	}
	return text, err
}
