package bearer

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// Options say which tokens there are. Both may be given.
type Options struct {
	Token string // one token; empty: none
	Name  string // what its owner is called, such as the setting that it came from

	// File has a token on each line, or the name of its owner, a blank, and the token. Empty lines and those that begin
	// with # do not count. Empty: no file.
	File string
}

const (
	least   = 16       // bytes of a token: a shorter one can be guessed
	largest = 64 << 10 // bytes of a file
)

// Tokens are the tokens that are known.
type Tokens struct{ o Options }

type token struct {
	sum   [sha256.Size]byte
	owner string
}

// New returns the tokens. It fails if there is none that can be used now.
func New(o Options) (*Tokens, error) {
	t := &Tokens{o}
	all, err := t.all()
	if err == nil && len(all) == 0 {
		err = errors.New("there is no token")
		if o.File != "" {
			err = fmt.Errorf("there is no token in %s", o.File)
		}
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}

// Owner is whose token this is, if it is known. The error says why that cannot be told.
func (t *Tokens) Owner(presented string) (owner string, known bool, err error) {
	all, err := t.all()
	if err != nil {
		return "", false, err
	}
	sum := sha256.Sum256([]byte(presented))
	for i := range all { // all of them, so that the time does not tell which
		if subtle.ConstantTimeCompare(sum[:], all[i].sum[:]) == 1 {
			owner, known = all[i].owner, true
		}
	}
	return owner, known, nil
}

func (t *Tokens) all() ([]token, error) {
	var all []token
	if t.o.Token != "" {
		if err := check(t.o.Token); err != nil {
			return nil, fmt.Errorf("%s: %w", t.o.Name, err)
		}
		all = append(all, token{sha256.Sum256([]byte(t.o.Token)), t.o.Name})
	}
	if t.o.File == "" {
		return all, nil
	}
	err := lines(t.o.File, func(owner, text string) {
		all = append(all, token{sha256.Sum256([]byte(text)), owner})
	})
	return all, err
}

// First is the first token of a file, for whoever has to show one.
func First(file string) (string, error) {
	first := ""
	err := lines(file, func(_, text string) {
		if first == "" {
			first = text
		}
	})
	if err == nil && first == "" {
		err = fmt.Errorf("there is no token in %s", file)
	}
	return first, err
}

// lines hands on the tokens of a file. The errors name lines, never what is on them.
func lines(file string, each func(owner, text string)) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("read tokens: %w", err)
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, largest+1))
	if err != nil {
		return fmt.Errorf("read tokens: %w", err)
	}
	if len(data) > largest {
		return fmt.Errorf("read tokens: %s is larger than %d bytes", file, largest)
	}
	for i, line := range bytes.Split(data, []byte("\n")) {
		words := strings.Fields(string(line))
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		owner, text := fmt.Sprintf("line %d", i+1), words[0]
		switch len(words) {
		case 1:
		case 2:
			owner, text = words[0], words[1]
		default:
			return fmt.Errorf("%s:%d: more than a name and a token", file, i+1)
		}
		if err := check(text); err != nil {
			return fmt.Errorf("%s:%d: %w", file, i+1, err)
		}
		each(owner, text)
	}
	return nil
}

// check says whether a token can be sent and is long enough.
func check(text string) error {
	if len(text) < least {
		return fmt.Errorf("a token of fewer than %d characters can be guessed: make one with `openssl rand -hex 32`", least)
	}
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return errors.New("a token must be of printable ASCII characters without blanks")
		}
	}
	return nil
}
