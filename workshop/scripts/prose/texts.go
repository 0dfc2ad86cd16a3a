package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// text is a passage that users read, and its first line.
type text struct {
	line  int
	words string
}

// textsOf returns the texts in a file that Vale cannot find itself.
func textsOf(name string) ([]text, error) {
	switch {
	case strings.HasSuffix(name, "_test.go"):
		return nil, nil
	case strings.HasSuffix(name, ".go"):
		return inGo(name)
	case strings.HasPrefix(name, "deploy/prometheus/") && strings.HasSuffix(name, ".yml"):
		return inLines(name, annotation)
	case strings.HasPrefix(name, "deploy/grafana/dashboards/"):
		return inLines(name, label)
	}
	return nil, nil
}

var (
	annotation = regexp.MustCompile(`^\s+(?:summary|description): (.*)$`)
	label      = regexp.MustCompile(`^\s*"(?:title|description)": (".*"),?$`)
	wordy      = regexp.MustCompile(`\pL+ \S+ \S+ \S+`)
	verb       = regexp.MustCompile(`%[-+# 0-9.]*[a-z]`)
)

// inLines returns the matches of the expression in the lines of a file.
func inLines(name string, expression *regexp.Regexp) ([]text, error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read texts: %w", err)
	}
	var found []text
	n := 0
	for line := range strings.Lines(string(content)) {
		n++
		m := expression.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil {
			continue
		}
		words := m[1]
		if unquoted, err := strconv.Unquote(words); err == nil {
			words = unquoted
		}
		found = append(found, text{n, words})
	}
	return found, nil
}

// inGo returns the strings of a Go file that read like a sentence: four words or more, on one line. Of struct tags it
// is the help text.
func inGo(name string) ([]text, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, nil, 0)
	if err != nil {
		return nil, fmt.Errorf("read texts: %w", err)
	}
	var found []text
	tags := make(map[*ast.BasicLit]bool)
	add := func(at token.Pos, words string) {
		words = verb.ReplaceAllString(words, "X")
		if wordy.MatchString(words) && !strings.ContainsAny(words, "\n\\") {
			found = append(found, text{set.Position(at).Line, words})
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.Field:
			if n.Tag != nil {
				tags[n.Tag] = true
				tag, _ := strconv.Unquote(n.Tag.Value) // the parser has accepted it
				add(n.Tag.Pos(), reflect.StructTag(tag).Get("help"))
			}
		case *ast.BinaryExpr:
			if words, ok := constant(n); ok {
				add(n.Pos(), words)
				return false
			}
		case *ast.BasicLit:
			if words, ok := constant(n); ok && !tags[n] {
				add(n.Pos(), words)
			}
		}
		return true
	})
	return found, nil
}

// constant returns the value of a string, or of a sum of strings.
func constant(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return "", false
		}
		s, err := strconv.Unquote(e.Value)
		return s, err == nil
	case *ast.BinaryExpr:
		left, ok := constant(e.X)
		if !ok || e.Op != token.ADD {
			return "", false
		}
		right, ok := constant(e.Y)
		return left + right, ok
	}
	return "", false
}
