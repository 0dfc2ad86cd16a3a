package main

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	shownCommand = regexp.MustCompile("(?m)(?:^    |[$] |`|run: )ratelimitd ([a-z]*)[^\n`|<]*")
	shownTarget  = regexp.MustCompile("`make ([a-z0-9]+)")
	shownFlag    = regexp.MustCompile(`(?:^| )--([a-z][a-z0-9-]*)`)
	shownMetric  = regexp.MustCompile(`\bratelimitd_[a-z0-9_]*[a-z0-9]\b`)
	metricRow    = regexp.MustCompile("(?m)^\\| `(ratelimitd_[a-z0-9_]+)[`{]")
)

// Pages name only commands, flags, targets of make and metrics that exist. No test runs the commands of pages that need
// a cluster.
func TestPagesNameWhatExists(t *testing.T) {
	const docs = "../../docs"
	model, _ := modelOf(t)
	flags := make(map[string]map[string]bool) // the flags of each command
	for _, n := range model.Children {
		flags[n.Name] = map[string]bool{"help": true}
		for _, group := range n.AllFlags(false) {
			for _, f := range group {
				flags[n.Name][f.Name] = true
				flags[n.Name]["no-"+f.Name] = f.Tag != nil && f.Tag.Negatable != ""
			}
		}
	}
	metrics := make(map[string]bool)
	list, err := os.ReadFile(docs + "/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range metricRow.FindAllSubmatch(list, -1) {
		metrics[string(m[1])] = true
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	commands, named := 0, 0
	err = filepath.WalkDir(docs, func(page string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(page) != ".md" {
			return err
		}
		text, err := os.ReadFile(page)
		for _, m := range shownCommand.FindAllStringSubmatch(string(text), -1) {
			of := flags[cmp.Or(m[1], "serve")] // serve is the command of a line without one
			if of == nil && m[1] != "help" {
				t.Errorf("%s: there is no command %q", page, m[0])
			}
			for _, f := range shownFlag.FindAllStringSubmatch(m[0], -1) {
				commands++
				if of != nil && !of[f[1]] {
					t.Errorf("%s: there is no flag --%s in %q", page, f[1], m[0])
				}
			}
		}
		for _, m := range shownTarget.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(string(makefile), "\n"+m[1]+":") {
				t.Errorf("%s: the Makefile does not have %s", page, m[0])
			}
		}
		for _, name := range shownMetric.FindAllString(string(text), -1) {
			named++
			short := name
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				short = strings.TrimSuffix(short, part)
			}
			if !metrics[name] && !metrics[short] {
				t.Errorf("%s names the metric %s, which docs/reference/metrics.md does not have", page, name)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if commands < 50 || named < 50 {
		t.Errorf("only %d flags and %d metrics", commands, named)
	}
}
