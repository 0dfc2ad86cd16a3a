package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// mutant is one change.
type mutant struct {
	number   int
	place    string
	text, by string

	file   string // the file with the change, if it changes a package's constant; else empty
	source []byte
}

// changed is a package with all changes in it.
type changed struct {
	files   map[string][]byte
	mutants []mutant

	fset   *token.FileSet
	info   *types.Info
	pkg    *types.Package
	source []byte // source of the current file
	path   string
	whole  map[ast.Node]bool // statements that cannot be left out, because they are part of another one
	names  map[string]string // the names of the imports of the current file, by path
}

// changes returns a package with all its changes.
func changes(dir string) (*changed, error) {
	c := &changed{files: make(map[string][]byte), fset: token.NewFileSet(),
		info: &types.Info{Types: make(map[ast.Expr]types.TypeAndValue)}}
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(n string) bool { return strings.HasSuffix(n, "_test.go") })
	if len(names) == 0 {
		return nil, fmt.Errorf("%s has no Go files to change", dir)
	}
	var files []*ast.File
	for _, name := range names {
		f, err := parser.ParseFile(c.fset, name, nil, 0)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	exports, err := exported(dir)
	if err != nil {
		return nil, err
	}
	conf := types.Config{Importer: importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, errors.New("not built")
		}
		return os.Open(exports[path])
	})}
	if c.pkg, err = conf.Check(files[0].Name.Name, c.fset, files, c.info); err != nil {
		return nil, err
	}
	for i, f := range files {
		c.path = names[i]
		if c.source, err = os.ReadFile(c.path); err != nil {
			return nil, err
		}
		c.whole, c.names = make(map[ast.Node]bool), make(map[string]string)
		for _, spec := range f.Imports {
			path, _ := strconv.Unquote(spec.Path.Value)
			if c.names[path] = filepath.Base(path); spec.Name != nil {
				c.names[path] = spec.Name.Name
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ForStmt:
				c.whole[n.Init], c.whole[n.Post] = true, true
			case *ast.IfStmt:
				c.whole[n.Init] = true
			case *ast.SwitchStmt:
				c.whole[n.Init] = true
			case *ast.CommClause:
				c.whole[n.Comm] = true
			}
			return true
		})
		c.files[c.path] = []byte(c.render(f))
	}
	c.files[filepath.Join(dir, "mutant_chosen.go")] = []byte("package " + c.pkg.Name() + chosen)
	return c, nil
}

// chosen reads which change applies.
const chosen = `

import (
	"os"
	"strconv"
)

var mutantChosen, _ = strconv.Atoi(os.Getenv("MUTANT"))
`

// exported finds the compiled forms of all packages that a package needs.
func exported(dir string) (map[string]string, error) {
	c := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Export", ".")
	c.Dir = dir
	out, err := c.Output()
	if err != nil {
		return nil, err
	}
	files := make(map[string]string)
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct{ ImportPath, Export string }
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return files, nil
		} else if err != nil {
			return nil, err
		}
		files[p.ImportPath] = p.Export
	}
}

func (c *changed) offset(p token.Pos) int { return c.fset.Position(p).Offset }

func (c *changed) text(from, to token.Pos) string {
	return string(c.source[c.offset(from):c.offset(to)])
}

// add notes a change, and returns its number.
func (c *changed) add(at token.Pos, text, by string) int {
	p := c.fset.Position(at)
	m := mutant{len(c.mutants) + 1, fmt.Sprintf("%s:%d:%d", filepath.Base(p.Filename), p.Line, p.Column), text, by, "",
		nil}
	c.mutants = append(c.mutants, m)
	return m.number
}

// render returns the text of a node, with all changes of the nodes below it.
func (c *changed) render(n ast.Node) string {
	var b strings.Builder
	at := n.Pos()
	if f, ok := n.(*ast.File); ok {
		at = f.FileStart
	}
	ast.Inspect(n, func(x ast.Node) bool {
		if x == nil || x == n {
			return true
		}
		if text, ok := c.replace(x); ok {
			b.WriteString(c.text(at, x.Pos()))
			b.WriteString(text)
			at = x.End()
			return false
		}
		return true
	})
	end := n.End()
	if f, ok := n.(*ast.File); ok {
		end = f.FileEnd
	}
	b.WriteString(c.text(at, end))
	return b.String()
}

// replace returns the text that replaces a node, if the node itself can be changed.
func (c *changed) replace(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.GenDecl:
		if n.Tok == token.CONST {
			c.constants(n)
		}
		if n.Tok != token.VAR {
			return c.text(n.Pos(), n.End()), true
		}
	case *ast.FuncDecl:
		return c.text(n.Pos(), n.Body.Pos()) + c.render(n.Body), true
	case *ast.FuncLit:
		return c.text(n.Pos(), n.Body.Pos()) + c.render(n.Body), true
	case *ast.CaseClause:
		if len(n.List) > 0 {
			return c.clause(n), true
		}
	case *ast.AssignStmt, *ast.IncDecStmt, *ast.ExprStmt:
		if !c.whole[n] {
			return c.statement(n.(ast.Stmt))
		}
	case *ast.KeyValueExpr: // the key may be an index, which must be a constant
		if text, ok := c.replace(n.Value); ok {
			return c.text(n.Pos(), n.Value.Pos()) + text, true
		}
		return c.text(n.Pos(), n.Value.Pos()) + c.render(n.Value), true
	case ast.Expr:
		return c.expression(n)
	}
	return "", false
}

// clause changes the conditions of a case if they are conditions, and leaves values as they are.
func (c *changed) clause(k *ast.CaseClause) string {
	var b strings.Builder
	b.WriteString("case ")
	for i, e := range k.List {
		if i > 0 {
			b.WriteString(", ")
		}
		if t := c.info.Types[e]; t.Value == nil && isBool(t.Type) {
			if text, ok := c.expression(e); ok {
				b.WriteString(text)
			} else {
				b.WriteString(c.render(e))
			}
		} else {
			b.WriteString(c.text(e.Pos(), e.End()))
		}
	}
	b.WriteString(":\n")
	for _, s := range k.Body {
		if text, ok := c.replace(s); ok {
			b.WriteString(text + "\n")
		} else {
			b.WriteString(c.render(s) + "\n")
		}
	}
	return b.String()
}

// statement leaves a statement out.
func (c *changed) statement(s ast.Stmt) (string, bool) {
	if a, ok := s.(*ast.AssignStmt); ok && a.Tok == token.DEFINE {
		return "", false
	}
	number := c.add(s.Pos(), c.text(s.Pos(), s.End()), "")
	if a, ok := s.(*ast.AssignStmt); ok && (a.Tok == token.ADD_ASSIGN || a.Tok == token.SUB_ASSIGN) {
		other := map[token.Token]string{token.ADD_ASSIGN: "-=", token.SUB_ASSIGN: "+="}[a.Tok]
		second := c.add(a.TokPos, a.Tok.String(), other)
		return fmt.Sprintf("switch mutantChosen { case %d:\ncase %d: %s %s %s\ndefault: %s }", number, second,
			c.text(a.Lhs[0].Pos(), a.Lhs[0].End()), other,
			c.text(a.Rhs[0].Pos(), a.Rhs[0].End()), c.render(s)), true
	}
	return fmt.Sprintf("if mutantChosen != %d { %s }", number, c.render(s)), true
}

// instead lists the operators that replace an operator.
var instead = map[token.Token][]token.Token{
	token.ADD: {token.SUB}, token.SUB: {token.ADD}, token.MUL: {token.QUO}, token.QUO: {token.MUL}, token.REM: {token.MUL},
	token.LSS: {token.LEQ, token.GEQ}, token.LEQ: {token.LSS, token.GTR}, token.GTR: {token.GEQ, token.LEQ},
	token.GEQ: {token.GTR, token.LSS},
	token.EQL: {token.NEQ}, token.NEQ: {token.EQL}, token.LAND: {token.LOR}, token.LOR: {token.LAND},
}

// expression turns an expression into a choice between its changes.
func (c *changed) expression(e ast.Expr) (string, bool) {
	t := c.info.Types[e]
	own := c.text(e.Pos(), e.End())
	if t.IsType() {
		return own, true
	}
	if t.Type == nil || !t.IsValue() {
		return "", false
	}
	foreign := false // a type that this file cannot name
	typ := types.TypeString(types.Default(t.Type), func(p *types.Package) string {
		if p == c.pkg {
			return ""
		}
		name, ok := c.names[p.Path()]
		foreign = foreign || !ok
		return name
	})
	if foreign {
		return "", false
	}
	var cases strings.Builder
	other := func(at token.Pos, text, by, whole string) {
		fmt.Fprintf(&cases, "case %d: return %s\n", c.add(at, text, by), whole)
	}
	if t.Value != nil {
		if isBool(t.Type) {
			other(e.Pos(), own, "!"+own, "!("+own+")")
		} else if b, ok := t.Type.Underlying().(*types.Basic); ok && b.Info()&types.IsInteger != 0 &&
			b.Info()&types.IsUntyped == 0 {
			by := "+1"
			if v, exact := constant.Int64Val(t.Value); !exact || v >= math.MaxUint32 { // it may be the largest of its type
				by = "-1"
			}
			other(e.Pos(), own, own+by, "("+own+")"+by)
		}
		if cases.Len() == 0 {
			return own, true
		}
		return fmt.Sprintf("func() %s { switch mutantChosen {\n%s}\nreturn %s }()", typ, cases.String(), own), true
	}
	switch e := e.(type) {
	case *ast.BinaryExpr:
		left, right := c.text(e.X.Pos(), e.X.End()), c.text(e.Y.Pos(), e.Y.End())
		for _, op := range instead[e.Op] {
			other(e.OpPos, e.Op.String(), op.String(), left+" "+op.String()+" "+right)
		}
		if e.Op == token.LAND || e.Op == token.LOR {
			other(e.X.Pos(), left, strconv.FormatBool(e.Op == token.LAND), right)
			other(e.Y.Pos(), right, strconv.FormatBool(e.Op == token.LAND), left)
		}
	case *ast.UnaryExpr:
		if e.Op == token.NOT || e.Op == token.SUB {
			other(e.OpPos, e.Op.String(), "", c.text(e.X.Pos(), e.X.End()))
		}
	case *ast.CallExpr:
		if f, ok := e.Fun.(*ast.Ident); ok && (f.Name == "min" || f.Name == "max") {
			for i := range e.Args {
				other(e.Args[i].Pos(), own, c.text(e.Args[i].Pos(), e.Args[i].End()),
					typ+"("+c.text(e.Args[i].Pos(), e.Args[i].End())+")")
			}
		} else if isBool(t.Type) {
			other(e.Pos(), own, "!"+own, "!"+own)
		}
	}
	if cases.Len() == 0 {
		return "", false
	}
	return fmt.Sprintf("func() %s { switch mutantChosen {\n%s}\nreturn %s }()", typ, cases.String(), c.render(e)), true
}

func isBool(t types.Type) bool {
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&types.IsBoolean != 0
}

// constants changes the numbers of a declaration, each in a separate source.
func (c *changed) constants(d *ast.GenDecl) {
	ast.Inspect(d, func(n ast.Node) bool {
		l, ok := n.(*ast.BasicLit)
		if !ok || l.Kind != token.INT {
			return true
		}
		v, err := strconv.ParseInt(strings.ReplaceAll(l.Value, "_", ""), 0, 64)
		if err != nil {
			return true
		}
		for _, by := range []int64{v + 1, v / 2} {
			text := strconv.FormatInt(by, 10)
			m := &c.mutants[c.add(l.Pos(), l.Value, text)-1]
			m.file = c.path
			m.source = slices.Concat(c.source[:c.offset(l.Pos())], []byte(text), c.source[c.offset(l.End()):])
		}
		return true
	})
}
