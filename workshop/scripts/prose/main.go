// Command prose checks the English of everything that users and developers read: the docs, help texts, log lines and
// error messages, metric descriptions, alerts, dashboards and comments. `make prose` runs it.
//
// The rules are in .vale, and those that only comments have in comments.go. The linter is Vale, pinned in
// workshop/tools/prose. Vale reads Markdown and the comments of
// Go files itself. Texts within Go strings, YAML and JSON are written to Markdown files of the same name and line
// numbers first, so that a finding names the place to change.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	findings, err := run(ctx)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(2)
	case len(findings) > 0:
		fmt.Printf("%s\n%d findings; CONTRIBUTING.md explains the style\n", strings.Join(findings, "\n"), len(findings))
		os.Exit(1)
	}
}

// run returns one line for each finding.
func run(ctx context.Context) ([]string, error) {
	files, err := tracked(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "prose")
	if err != nil {
		return nil, fmt.Errorf("make a directory for texts: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	var args, findings []string
	for _, name := range files {
		if strings.HasSuffix(name, ".go") {
			found, err := inComments(name)
			if err != nil {
				return nil, err
			}
			findings = append(findings, found...)
		}
		texts, err := textsOf(name)
		if err != nil {
			return nil, err
		}
		if strings.HasSuffix(name, ".md") || strings.HasSuffix(name, ".go") {
			args = append(args, name)
		}
		if len(texts) == 0 {
			continue
		}
		copied := filepath.Join(dir, name) + ".md"
		if err := os.MkdirAll(filepath.Dir(copied), 0o755); err != nil {
			return nil, fmt.Errorf("make a directory for texts: %w", err)
		}
		if err := os.WriteFile(copied, asList(texts), 0o600); err != nil {
			return nil, fmt.Errorf("write texts: %w", err)
		}
		args = append(args, copied)
	}
	found, err := vale(ctx, dir, args)
	return append(findings, found...), err
}

// tracked returns the files to check: the files of the project, without test data and without generated code.
func tracked(ctx context.Context) ([]string, error) {
	listed, err := exec.CommandContext(ctx, "git", "ls-files", "-co", "--exclude-standard").Output()
	if err != nil {
		return nil, fmt.Errorf("list the project's files: %w", err)
	}
	return slices.DeleteFunc(strings.Fields(string(listed)), func(name string) bool {
		_, err := os.Stat(name) // a file may be deleted and not yet committed
		return err != nil || strings.Contains(name, "testdata/") || strings.HasSuffix(name, ".pb.go") ||
			strings.HasSuffix(name, ".connect.go")
	}), nil
}

// vale runs the linter. Its exit code is 1 if it has findings.
func vale(ctx context.Context, dir string, files []string) ([]string, error) {
	args := append([]string{"tool", "-modfile=workshop/tools/prose/go.mod", "vale", "--output", "line"}, files...)
	var output, problems bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Stdout, cmd.Stderr = &output, &problems
	err := cmd.Run()
	if failed, ok := errors.AsType[*exec.ExitError](err); err != nil &&
		(!ok || failed.ExitCode() != 1 || output.Len() == 0) {
		return nil, fmt.Errorf("run vale: %w\n%s%s", err, output.String(), problems.String())
	}
	var findings []string
	for line := range strings.Lines(output.String()) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if rest, ok := strings.CutPrefix(line, dir+string(filepath.Separator)); ok {
			line = strings.Replace(rest, ".md:", ":", 1)
		}
		findings = append(findings, line)
	}
	return findings, nil
}

// asList writes each text as an item of a list, on its line.
func asList(texts []text) []byte {
	slices.SortStableFunc(texts, func(a, b text) int { return a.line - b.line })
	var b bytes.Buffer
	line := 1
	for _, t := range texts {
		for ; line < t.line; line++ {
			b.WriteByte('\n')
		}
		if b.Len() > 0 && b.Bytes()[b.Len()-1] != '\n' { // a second text on a line
			b.WriteByte('\n')
			line++
		}
		b.WriteString("- " + strings.Join(strings.Fields(t.words), " "))
	}
	b.WriteByte('\n')
	return b.Bytes()
}
