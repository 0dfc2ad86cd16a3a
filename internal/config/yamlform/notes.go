package yamlform

import "fmt"

// MaxErrors is the number of errors that a Reader reports for one file; one more tells how many it left out.
const MaxErrors = 500

// notes collects the errors, or the warnings, of one file.
type notes struct {
	all []*Error
	// notes since the first alias, to remove duplicates: the target of an alias is read once for each alias
	seen map[Error]struct{}
	at   map[Position]struct{} // where seen was noted
	more int                   // number of notes beyond MaxErrors
}

// add notes an error. repeats is set if the same error may have been noted before. The message of an error beyond
// MaxErrors is not built.
func (n *notes) add(repeats bool, at Position, reference Reference, format string, args []any) {
	if len(n.all) >= MaxErrors {
		if _, again := n.at[at]; !again {
			n.more++
		}
		return
	}
	e := *at.Errorf(format, args...)
	e.Reference = reference
	if repeats {
		if _, again := n.seen[e]; again {
			return
		}
		if n.seen == nil {
			n.seen, n.at = make(map[Error]struct{}), make(map[Position]struct{})
		}
		n.seen[e], n.at[at] = struct{}{}, struct{}{}
	}
	n.all = append(n.all, &e)
}

// sorted returns the errors in the order of the file.
func (n *notes) sorted() []*Error {
	errs := SortErrors(n.all)
	if n.more > 0 {
		last := *errs[len(errs)-1]
		last.Msg = fmt.Sprintf("and %d more errors: mend the ones above first", n.more)
		errs = append(errs, &last)
	}
	return errs
}
