package main

import (
	"bytes"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
)

var (
	// nounWhat finds the word that stands in the place of a noun. "What is left" is better "the remaining hits".
	nounWhat = regexp.MustCompile(`(?i)\bwhat\b`)
	// question matches the uses that are right: questions, quotations, and the name of a function that describes.
	question = regexp.MustCompile(`(?i)\bwhat (?:happens|kind|sort|if|to do)\b|\bwhat\b[^.]*\?|"[^"]*"|^// what describes`)
	// continues finds trailing comments that make sense only after the name. Behind the field number, "of the
	// connection" is better "connection number, for log lines". A unit is fine.
	continues = regexp.MustCompile(`^// (?:of|by|in|that|from|which|whose|with|for|to|as|on|at|until|since)\b`)
	unit      = regexp.MustCompile(`^// (?:in|of) (?:bytes|bits|hits|micros|(?:nano|micro|milli)?seconds)\b`)
)

// inComments returns a finding for each comment of a Go file that avoids the noun.
func inComments(name string) ([]string, error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read comments: %w", err)
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, content, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("read comments: %w", err)
	}
	lines := bytes.Split(content, []byte("\n"))
	var findings []string
	for _, group := range file.Comments {
		for _, c := range group.List {
			at := set.Position(c.Pos())
			find := func(text string) {
				findings = append(findings, fmt.Sprintf("%s:%d:%d:Comments: %s", name, at.Line, at.Column, text))
			}
			if nounWhat.MatchString(question.ReplaceAllString(c.Text, "")) {
				find(`name the thing instead of "what"`)
			}
			trailing := len(bytes.TrimSpace(lines[at.Line-1][:at.Column-1])) > 0
			if trailing && continues.MatchString(c.Text) && !unit.MatchString(c.Text) {
				find(fmt.Sprintf("write a whole noun, not a continuation of the name: %.40q", strings.TrimPrefix(c.Text, "// ")))
			}
		}
	}
	return findings, nil
}
