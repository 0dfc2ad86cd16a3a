package config

import (
	"bytes"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/yamlform"
)

// Some files stand beside rules and usually hold none: notes, tests of rules, backups of editors. The reference reads
// every file, so a file that it enforces must not vanish because of its name. Such a file is a rule file too if it gives
// a domain; every other one is named in the log.

// aside is why a file may be no rule file, by its name alone.
type aside string

const (
	asideNotes  aside = "notes"  // README*, *.md
	asideTests  aside = "tests"  // *_test.yaml
	asideBackup aside = "backup" // *~, without the file that it is a backup of
	asideCopy   aside = "copy"   // *~, with that file beside it
	asideHidden aside = "hidden" // begins with a dot
)

// asideOf looks at a file's name, and at the names beside it. Empty: it is a rule file.
func asideOf(name string, beside []string) aside {
	base := path.Base(name)
	switch original, backup := strings.CutSuffix(base, "~"); {
	case strings.HasPrefix(base, "."):
		return asideHidden
	case backup && slices.Contains(beside, original):
		return asideCopy
	case backup:
		return asideBackup
	case strings.HasSuffix(base, "_test.yaml"), strings.HasSuffix(base, "_test.yml"):
		return asideTests
	case strings.HasPrefix(base, "README"), strings.HasSuffix(base, ".md"):
		return asideNotes
	}
	return ""
}

// Skipped is a file in the rule folder that is not read as rules.
type Skipped struct {
	Name  string // path below the folder
	Rules bool   // it gives a domain, and would be rules under another name
	Tests bool   // its name is that of tests of rules
	Why   string
}

// skip says why a file with this content is no rule file, and false if it is one.
func (a aside) skip(name string, data []byte) (Skipped, bool) {
	s := Skipped{Name: name, Rules: givesDomain(a, data), Tests: a == asideTests}
	switch {
	case a == "":
		return s, false
	case a == asideHidden:
		s.Why = "its name begins with a dot"
	case a == asideCopy:
		s.Why = "it is the backup of a file beside it"
	case s.Rules:
		return s, false
	case a == asideTests:
		s.Why = "it holds tests, or no domain"
	default:
		s.Why = "it holds no domain"
	}
	return s, true
}

var (
	domainLine = regexp.MustCompile(`(?m)^domain[ \t]*:`)
	casesLine  = regexp.MustCompile(`(?m)^cases[ \t]*:`)
)

// givesDomain says whether a text gives a domain, and is not a file of tests, which may name one too.
func givesDomain(a aside, data []byte) bool {
	if !bytes.Contains(data, []byte("domain")) {
		return false
	}
	r := yamlform.NewReader("", yamlform.Options{})
	docs := r.Parse(data)
	if r.Found() > 0 {
		// Notes are seldom YAML, and may quote rules. In every other file this is a mistake, which the load reports.
		return a != asideNotes && domainLine.Match(data) && !casesLine.Match(data)
	}
	domain := false
	for _, doc := range docs {
		for key := range doc.Pairs() {
			switch key.Written() {
			case "domain":
				domain = true
			case "cases":
				return false
			}
		}
	}
	return domain
}
