package config

import (
	"bytes"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
)

// Some files in a rule directory usually have no rules: notes, tests of rules, backups of editors. But
// envoyproxy/ratelimit reads every file, so a file that it enforces must not be skipped only because of its name. A
// file with such a name is a rule file if it has a domain. The log names every skipped file.

// nonRule is the reason why a file may have no rules, judging by its name only. The zero value is for a rule file's
// name.
type nonRule string

const (
	namedNotes  nonRule = "notes"  // README*, *.md
	namedTests  nonRule = "tests"  // *_test.yaml
	namedBackup nonRule = "backup" // *~, if the file that it is a backup of does not exist
	namedCopy   nonRule = "copy"   // *~, if that file exists
	namedHidden nonRule = "hidden" // starts with a dot
)

// nonRuleOf returns the kind of a file's name. siblings are the names in the same directory.
func nonRuleOf(name string, siblings []string) nonRule {
	base := path.Base(name)
	switch original, backup := strings.CutSuffix(base, "~"); {
	case strings.HasPrefix(base, "."):
		return namedHidden
	case backup && slices.Contains(siblings, original):
		return namedCopy
	case backup:
		return namedBackup
	case strings.HasSuffix(base, "_test.yaml"), strings.HasSuffix(base, "_test.yml"):
		return namedTests
	case strings.HasPrefix(base, "README"), strings.HasSuffix(base, ".md"):
		return namedNotes
	}
	return ""
}

// Skipped is a file in the rule directory that is not read as rules.
type Skipped struct {
	Name  string // path below the directory
	Rules bool   // it has a domain: with another name it would be loaded
	Tests bool   // it is named like a file of tests
	Why   string
}

// ofTests is why a file of tests is skipped.
const ofTests = "it holds tests, or no domain"

// skip returns why a file with this content is not read as rules. It returns false for a rule file.
func (a nonRule) skip(name string, data []byte) (Skipped, bool) {
	if a == "" {
		return Skipped{}, false
	}
	s := Skipped{Name: name, Rules: givesDomain(a, data), Tests: a == namedTests}
	switch {
	case a == namedHidden:
		s.Why = "its name starts with a dot"
	case a == namedCopy:
		s.Why = "it is the backup of a file next to it"
	case s.Rules:
		return s, false
	case a == namedTests:
		s.Why = ofTests
	default:
		s.Why = "it holds no domain"
	}
	return s, true
}

var (
	domainLine = regexp.MustCompile(`(?m)^domain[ \t]*:`)
	casesLine  = regexp.MustCompile(`(?m)^cases[ \t]*:`)
)

// givesDomain reports whether a file has a domain and is not a file of tests, which may have a domain too.
func givesDomain(a nonRule, data []byte) bool {
	if !bytes.Contains(data, []byte("domain")) {
		return false
	}
	r := yamlform.NewReader("", yamlform.Options{})
	docs := r.Parse(data)
	if r.Found() > 0 {
		// Notes are seldom YAML and may quote rules. Any other file is a rule file with a mistake: the load reports it.
		return a != namedNotes && domainLine.Match(data) && !casesLine.Match(data)
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
