package bearer

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/platform/files"
	"github.com/ratelimitd/ratelimitd/internal/platform/stdin"
)

// Options are the sources of tokens. Both may be set.
type Options struct {
	Token string // one token; empty without one
	Name  string // token owner's name in logs, such as the setting that the token comes from

	// File has a token on each line. Before it may be the name of its owner, its role, or both in this order, with spaces
	// between. Without a role it is Operate. Empty lines and lines that start with # are ignored. Empty: no file.
	File string
}

// The roles of tokens.
const (
	Read    = "read"    // its bearer may look
	Operate = "operate" // its bearer may also change
)

const (
	least   = 16       // bytes of a token; a shorter one can be guessed
	largest = 64 << 10 // bytes of a file
)

// Tokens are the valid tokens.
type Tokens struct{ o Options }

type token struct {
	sum         [sha256.Size]byte
	owner, role string
}

// New returns the tokens. It fails without a token.
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

// Owner returns the owner and the role of a token. The role is empty if the token is unknown. It fails if the file
// cannot be used.
func (t *Tokens) Owner(presented string) (owner, role string, err error) {
	all, err := t.all()
	if err != nil {
		return "", "", err
	}
	sum := sha256.Sum256([]byte(presented))
	for i := range all { // always all, so that the time does not reveal which one matched
		if subtle.ConstantTimeCompare(sum[:], all[i].sum[:]) == 1 {
			owner, role = all[i].owner, all[i].role
		}
	}
	return owner, role, nil
}

func (t *Tokens) all() ([]token, error) {
	var all []token
	if t.o.Token != "" {
		if err := check(t.o.Token); err != nil {
			return nil, fmt.Errorf("%s: %w", t.o.Name, err)
		}
		all = append(all, token{sha256.Sum256([]byte(t.o.Token)), t.o.Name, Operate})
	}
	if t.o.File == "" {
		return all, nil
	}
	err := lines(t.o.File, func(owner, role, text string) {
		all = append(all, token{sha256.Sum256([]byte(text)), owner, role})
	})
	return all, err
}

// First returns the first token of a file, for clients; - is the standard input.
func First(file string) (string, error) {
	if file == stdin.Name {
		data, err := stdin.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("read tokens: %w", err)
		}
		return firstOf(stdin.Shown, func(each func(_, _, text string)) error { return parse(stdin.Shown, data, each) })
	}
	return firstOf(file, func(each func(_, _, text string)) error { return lines(file, each) })
}

func firstOf(file string, lines func(each func(_, _, text string)) error) (string, error) {
	first := ""
	err := lines(func(_, _, text string) {
		if first == "" {
			first = text
		}
	})
	if err == nil && first == "" {
		err = fmt.Errorf("there is no token in %s", file)
	}
	return first, err
}

// lines calls each for every token of a file. Errors name lines, never their content.
func lines(file string, each func(owner, role, text string)) error {
	data, err := files.Use(file, func(f *os.File) ([]byte, error) { return io.ReadAll(io.LimitReader(f, largest+1)) })
	if err != nil {
		return fmt.Errorf("read tokens: %w", err)
	}
	return parse(file, data, each)
}

// parse calls each for every token in the content of a file.
func parse(file string, data []byte, each func(owner, role, text string)) error {
	if len(data) > largest {
		return fmt.Errorf("read tokens: %s is larger than %d bytes", file, largest)
	}
	for i, line := range bytes.Split(data, []byte("\n")) {
		words := strings.Fields(string(line))
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		owner, role, text := fmt.Sprintf("line %d", i+1), "", words[len(words)-1]
		words = words[:len(words)-1]
		if n := len(words); n > 0 && (words[n-1] == Read || words[n-1] == Operate) {
			role, words = words[n-1], words[:n-1]
		}
		switch len(words) {
		case 0:
		case 1:
			owner = words[0]
		default:
			if role == "" && len(words) == 2 { // the word is not shown: it may be a part of a token
				return fmt.Errorf("%s:%d: the second of the three words is no role: write %s or %s", file, i+1, Read, Operate)
			}
			return fmt.Errorf("%s:%d: more than a name, a role (%s or %s) and a token", file, i+1, Read, Operate)
		}
		if err := check(text); err != nil {
			return fmt.Errorf("%s:%d: %w", file, i+1, err)
		}
		each(owner, cmp.Or(role, Operate), text)
	}
	return nil
}

// check reports whether a token can be sent in a header and is long enough.
func check(text string) error {
	if len(text) < least {
		return fmt.Errorf("a token of fewer than %d characters can be guessed: make one with `openssl rand -hex 32`", least)
	}
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return errors.New("a token must consist of printable ASCII characters without spaces")
		}
	}
	return nil
}
