package operator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/config/entries"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter/hotkeys"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// admin is the ratelimitd.admin.v1.AdminService, an adminconnect.AdminServiceHandler.
type admin struct {
	rules   Rules
	bounds  Bounds
	hotKeys func(hotkeys.Query) hotkeys.Report // nil disables hot keys
	shares  Shares                             // nil without quota buckets
	host    string
	regions Regions
}

var fileStates = map[descriptor.FileState]adminv1.RuleFileState{
	descriptor.FileLoaded:   adminv1.RuleFileState_RULE_FILE_STATE_LOADED,
	descriptor.FileStale:    adminv1.RuleFileState_RULE_FILE_STATE_STALE,
	descriptor.FileRejected: adminv1.RuleFileState_RULE_FILE_STATE_REJECTED,
}

var matchKinds = map[descriptor.MatchKind]adminv1.MatchKind{
	descriptor.MatchExact:    adminv1.MatchKind_MATCH_KIND_EXACT,
	descriptor.MatchValues:   adminv1.MatchKind_MATCH_KIND_VALUES,
	descriptor.MatchCIDR:     adminv1.MatchKind_MATCH_KIND_CIDR,
	descriptor.MatchWildcard: adminv1.MatchKind_MATCH_KIND_WILDCARD,
	descriptor.MatchRegex:    adminv1.MatchKind_MATCH_KIND_REGEX,
	descriptor.MatchAny:      adminv1.MatchKind_MATCH_KIND_ANY,
}

// ListRuleFiles implements adminconnect.AdminServiceHandler.
func (a *admin) ListRuleFiles(context.Context, *adminv1.ListRuleFilesRequest) (*adminv1.ListRuleFilesResponse, error) {
	if a.rules.Files == nil {
		return nil, connect.NewError(connect.CodeUnimplemented, errors.New("this server's rules do not come from files"))
	}
	answer := &adminv1.ListRuleFilesResponse{}
	for _, f := range sortedFiles(a.rules.Files()) {
		file := &adminv1.RuleFile{
			Name:    validText(f.Name),
			State:   fileStates[f.State],
			Domains: validTexts(f.Domains),
			Rules:   count(f.Rules),
			Errors:  validTexts(f.Errors),
		}
		if !f.Since.IsZero() {
			file.Since = timestamppb.New(f.Since)
		}
		answer.Files = append(answer.Files, file)
	}
	return answer, nil
}

// Explain implements adminconnect.AdminServiceHandler.
func (a *admin) Explain(_ context.Context, req *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	if a.rules.Explain == nil {
		return nil, connect.NewError(connect.CodeUnimplemented, errors.New("this server cannot explain its rules"))
	}
	if req.GetDomain() == "" {
		return nil, invalid("domain must not be empty")
	}
	entries, err := a.bounds.entries(req)
	if err != nil {
		return nil, err
	}
	x := a.rules.Explain(req.GetDomain(), entries)
	answer := &adminv1.ExplainResponse{DomainKnown: x.Known, Reason: reasonWithGuess(entries, &x), Rule: ruleMessage(&x)}
	a.regions.nameHomes(&x, answer.Rule)
	for i := range x.Levels {
		answer.Levels = append(answer.Levels, levelMessage(&x.Levels[i]))
	}
	return answer, nil
}

// reasonWithGuess explains why no rule matches, and suggests a correction.
func reasonWithGuess(sent []descriptor.Entry, x *descriptor.Explanation) string {
	reason := x.Reason
	if guess := entries.Guess(sent, x); guess != "" {
		reason += ": did you mean " + strconv.Quote(guess) + "?"
	}
	return validText(reason)
}

// describing is a request about a descriptor.
type describing interface {
	GetDomain() string
	GetEntries() []*adminv1.Entry
}

// entries returns the entries of a request, or an error if it is over a bound.
func (b *Bounds) entries(req describing) ([]descriptor.Entry, error) {
	switch {
	case len(req.GetDomain()) > b.MaxTextBytes:
		return nil, invalid("domain: more than %d bytes", b.MaxTextBytes)
	case len(req.GetEntries()) > b.MaxEntries:
		return nil, invalid("entries: more than %d", b.MaxEntries)
	}
	entries := make([]descriptor.Entry, len(req.GetEntries()))
	for i, e := range req.GetEntries() {
		if max(len(e.GetKey()), len(e.GetValue())) > b.MaxTextBytes {
			return nil, invalid("entries[%d]: a key or a value of more than %d bytes", i, b.MaxTextBytes)
		}
		entries[i] = descriptor.Entry{Key: e.GetKey(), Value: e.GetValue()}
	}
	return entries, nil
}

func invalid(format string, args ...any) error {
	return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf(format, args...))
}

func levelMessage(l *descriptor.ExplainedLevel) *adminv1.Level {
	m := &adminv1.Level{Entry: &adminv1.Entry{Key: l.Entry.Key, Value: l.Entry.Value}, Reason: validText(l.Reason)}
	for _, c := range l.Candidates {
		m.Candidates = append(m.Candidates, &adminv1.Candidate{
			Kind:    matchKinds[c.Kind],
			Value:   validText(c.Value),
			Matched: c.Matched,
			Reason:  validText(c.Reason),
		})
	}
	return m
}

func ruleMessage(x *descriptor.Explanation) *adminv1.Rule {
	r := x.Rule
	if r == nil {
		return nil
	}
	m := &adminv1.Rule{
		Path:           validText(r.Path),
		Name:           validText(r.Name),
		Unlimited:      r.Unlimited,
		ShadowMode:     r.Shadow,
		QuotaMode:      r.Quota,
		Replaces:       validTexts(r.Replaces),
		DetailedMetric: r.DetailedMetric,
		Overridable:    r.Overridable(),
		Position: &adminv1.Position{File: validText(r.Position.File), Line: count(r.Position.Line),
			Column: count(r.Position.Col)},
	}
	if r.OnError != descriptor.OnErrorDefault {
		m.OnError = descriptor.OnErrorNames[r.OnError]
	}
	if r.HitCost() != nil {
		entries := make([]descriptor.Entry, len(x.Levels))
		for i := range x.Levels {
			entries[i] = x.Levels[i].Entry
		}
		m.HitCost = r.HitCostOf(entries)
	}
	for i := range r.Limits {
		limit := limitMessage(&r.Limits[i])
		if i < len(x.Keys) {
			limit.CounterKey = []byte(x.Keys[i])
		}
		m.Limits = append(m.Limits, limit)
	}
	return m
}

func limitMessage(l *descriptor.Limit) *adminv1.Limit {
	m := &adminv1.Limit{
		Name:            validText(l.Name),
		RequestsPerUnit: l.Requests,
		Unit:            l.Window.Unit.String(),
		UnitMultiplier:  max(l.Window.Multiplier, 1),
		Window:          durationpb.New(l.Window.Length()),
		Algorithm:       l.Algorithm.String(),
		Lease:           l.Lease,
	}
	if l.Has(descriptor.SettingBurst) {
		m.Burst = l.Burst
	}
	if l.Has(descriptor.SettingPrecision) {
		m.Precision = max(l.Precision, 1)
	}
	if l.Has(descriptor.SettingRefill) {
		m.Refill = choice(l.Interval, "interval", "greedy")
	}
	if l.Has(descriptor.SettingNoDelay) {
		m.Nodelay = l.NoDelayText()
	}
	switch {
	case l.Window.Location != nil:
		m.Calendar = l.Window.Location.String()
	case l.Has(descriptor.SettingAlign):
		m.Align = choice(l.FirstHit, "first_hit", "clock")
	}
	if l.Regions != nil && l.Regions.Mode != descriptor.Regional {
		m.RegionMode, m.RegionHome = descriptor.RegionModeNames[l.Regions.Mode], validText(l.Regions.Home)
	}
	if l.CountDenied != descriptor.DeniedDefault {
		m.CountDenied = proto.Bool(l.CountDenied == descriptor.DeniedCount)
	}
	return m
}

func choice(first bool, one, other string) string {
	if first {
		return one
	}
	return other
}

func sortedFiles(files []descriptor.FileStatus) []descriptor.FileStatus {
	return slices.SortedFunc(slices.Values(files), func(a, b descriptor.FileStatus) int {
		return strings.Compare(a.Name, b.Name)
	})
}

func validTexts(list []string) []string {
	valid := make([]string, len(list))
	for i, s := range list {
		valid[i] = validText(s)
	}
	return valid
}

func count(n int) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) }

// validText is s with the replacement character where it is not UTF-8: a client could not read a message that has such
// bytes.
func validText(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
