package operator

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/platform/logging"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Usage lists descriptors that have entries and a live counter.
type Usage interface {
	List(ctx context.Context, now time.Time, domain string, where [][]descriptor.Entry, at uint64,
		count int) (found [][]descriptor.Entry, next uint64, err error)
}

// usages is the ratelimitd.admin.v1.UsageService.
type usages struct {
	usage    Usage // nil disables usage
	counters Counters
	tree     func() *descriptor.Tree
	bounds   Bounds
}

const (
	defaultPage = 100
	maxPage     = 1000
	peeksAtOnce = 8
)

// List implements adminconnect.UsageServiceHandler.
func (u *usages) List(ctx context.Context, req *adminv1.UsageServiceListRequest) (*adminv1.UsageServiceListResponse,
	error) {
	switch {
	case u.usage == nil:
		return nil, errNoUsage
	case req.GetDomain() == "":
		return nil, invalid("domain must not be empty")
	case len(req.GetWhere()) == 0:
		return nil, invalid("where must not be empty: usage is listed by entries")
	case req.GetPageSize() > maxPage:
		return nil, invalid("page_size is %d: use at most %d", req.GetPageSize(), maxPage)
	}
	var page usagePage
	if err := page.parse(req.GetPageToken()); err != nil {
		return nil, err
	}
	where, err := u.bounds.entries(whereOf{req})
	if err != nil {
		return nil, err
	}
	size := int(req.GetPageSize())
	if size == 0 {
		size = defaultPage
	}
	now := time.Now()
	each := u.countedAs(req.GetDomain(), where)
	if page.value >= len(each[0]) { // the rules have changed since the page before
		return &adminv1.UsageServiceListResponse{}, nil
	}
	values := len(each[0])
	each[0] = each[0][page.value : page.value+1]
	found, next, err := u.usage.List(ctx, now, req.GetDomain(), each, page.at, size)
	if err != nil {
		return nil, unavailable(err)
	}
	all := make([]*adminv1.Usage, len(found))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(peeksAtOnce)
	for i, entries := range found {
		g.Go(func() error {
			counters, err := u.counters.Peek(ctx, now, req.GetDomain(), &limiter.Descriptor{Entries: entries})
			if err != nil {
				return err
			}
			if countsFor(counters.Explanation.Rule, entries, where) {
				all[i] = usageMessage(now, entries, &counters)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, errorOf(err)
	}
	answer := &adminv1.UsageServiceListResponse{}
	switch {
	case next != 0:
		answer.NextPageToken = usagePage{page.value, next}.String()
	case page.value+1 < values:
		answer.NextPageToken = usagePage{page.value + 1, 0}.String()
	}
	for _, m := range all {
		if m != nil {
			answer.Usages = append(answer.Usages, m)
		}
	}
	return answer, nil
}

// usagePage is the start of a page: the index of the listed value, among the grouped values of the first entry, and the
// position in its list.
type usagePage struct {
	value int
	at    uint64
}

func (p usagePage) String() string {
	return strconv.Itoa(p.value) + "." + strconv.FormatUint(p.at, 10)
}

// parse reads the token of a page. The first page has none.
func (p *usagePage) parse(token string) error {
	if token == "" {
		return nil
	}
	value, at, _ := strings.Cut(token, ".")
	n, err := strconv.ParseUint(value, 10, 31)
	if err == nil {
		p.value = int(n)
		p.at, err = strconv.ParseUint(at, 10, 64)
	}
	if err != nil {
		return invalid("page_token: use the next_page_token of the page before")
	}
	return nil
}

// countedAs returns, for each entry, the entry and its forms under the rules that group values: descriptors are
// recorded with grouped values.
func (u *usages) countedAs(domain string, where []descriptor.Entry) [][]descriptor.Entry {
	each := make([][]descriptor.Entry, len(where))
	for i, e := range where {
		each[i] = []descriptor.Entry{e}
	}
	tree := u.tree()
	if tree == nil {
		return each
	}
	for _, r := range tree.Rules {
		if r.Domain != domain || !r.Usage || !r.Grouped() {
			continue
		}
		for level := range r.Levels {
			for i, e := range where {
				as := descriptor.Entry{Key: e.Key, Value: r.Counted(level, e.Value)}
				if r.Levels[level].Key == e.Key && !slices.Contains(each[i], as) {
					each[i] = append(each[i], as)
				}
			}
		}
	}
	return each
}

// countsFor reports whether each entry of where is one of the entries, or counts as one of them under their rule.
func countsFor(rule *descriptor.Rule, entries, where []descriptor.Entry) bool {
	for _, e := range where {
		has := slices.Contains(entries, e)
		for level := 0; !has && rule != nil && level < len(entries); level++ {
			has = entries[level] == descriptor.Entry{Key: e.Key, Value: rule.Counted(level, e.Value)}
		}
		if !has {
			return false
		}
	}
	return true
}

var errNoUsage = connect.NewError(connect.CodeUnimplemented, errors.New("this server keeps no index of usage"))

func unavailable(err error) error {
	return connect.NewError(connect.CodeUnavailable, errors.New(logging.Shorten(err.Error())))
}

// usageMessage is nil if nothing is in use any more, or the rule no longer has usage.
func usageMessage(now time.Time, entries []descriptor.Entry, c *limiter.Counters) *adminv1.Usage {
	rule := c.Explanation.Rule
	if rule == nil || !rule.Usage {
		return nil
	}
	used := false
	for i := range c.List {
		used = used || c.List[i].Used > 0
	}
	if !used {
		return nil
	}
	m := &adminv1.Usage{Rule: ruleMessage(&c.Explanation), Counters: counterMessages(now, c)}
	for _, e := range entries {
		m.Entries = append(m.Entries, &adminv1.Entry{Key: validText(e.Key), Value: validText(e.Value)})
	}
	return m
}

// whereOf makes the entries of a UsageServiceListRequest subject to the bounds of a descriptor.
type whereOf struct {
	*adminv1.UsageServiceListRequest
}

func (w whereOf) GetEntries() []*adminv1.Entry { return w.GetWhere() }
