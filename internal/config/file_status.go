package config

import (
	"context"
	"log/slog"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// statusOf returns the status of a rule file, for operators.
func statusOf(name string, state descriptor.FileState, inUse *source, errs []*yamlform.Error) descriptor.FileStatus {
	s := descriptor.FileStatus{Name: name, State: state}
	if inUse != nil {
		s.Rules = inUse.rules
		for i := range inUse.domains {
			if !slices.Contains(s.Domains, inUse.domains[i].Name) {
				s.Domains = append(s.Domains, inUse.domains[i].Name)
			}
		}
	}
	for _, e := range errs {
		s.Errors = append(s.Errors, e.Error())
	}
	if inUse != nil {
		for _, e := range inUse.warnings {
			s.Warnings = append(s.Warnings, e.Error())
		}
	}
	return s
}

const errorsLogged = 10 // per file; its status lists all of them

// mostNamed is the number of files that the log names on the first load: more names would hide unusual lines. Later,
// every changed file is named.
const mostNamed = 3

// logChange returns a function that logs how the state of a file changed. It returns nil if its state, errors, warnings
// and rules are unchanged. loaded is the level of a file that is loaded without warnings.
func (f *Directory) logChange(before, after descriptor.FileStatus, rules bool, loaded slog.Level) func() {
	if before.State == after.State && !rules && slices.Equal(before.Errors, after.Errors) &&
		slices.Equal(before.Warnings, after.Warnings) {
		return nil
	}
	log := f.o.Logger.With("file", after.Name, "state", string(after.State))
	if after.State == descriptor.FileLoaded && len(after.Warnings) > 0 {
		shown := after.Warnings[:min(len(after.Warnings), errorsLogged)]
		return func() {
			log.Warn("rule file loaded with warnings: something in it is probably not what was meant",
				"domains", after.Domains, "rules", after.Rules, "warnings", shown, "total_warnings", len(after.Warnings))
		}
	}
	if after.State == descriptor.FileLoaded {
		return func() {
			log.Log(context.Background(), loaded, "rule file loaded", "domains", after.Domains, "rules", after.Rules)
		}
	}
	shown := after.Errors[:min(len(after.Errors), errorsLogged)]
	msg := "rule file rejected, none of it is active"
	if after.State == descriptor.FileStale {
		msg = "rule file rejected, its last good version stays in use"
	}
	return func() { log.Error(msg, "rules", after.Rules, "errors", shown, "total_errors", len(after.Errors)) }
}
