package operator

import (
	"context"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/operator/overridepb"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// List implements adminconnect.OverrideServiceHandler.
func (o *overrides) List(ctx context.Context,
	req *adminv1.OverrideServiceListRequest) (*adminv1.OverrideServiceListResponse, error) {
	q, err := o.query(req)
	if err != nil {
		return nil, err
	}
	q.After = req.GetPageToken()
	for {
		page, next, err := o.Source.List(ctx, q)
		if err != nil {
			return nil, overrideError(err)
		}
		answer := &adminv1.OverrideServiceListResponse{NextPageToken: next}
		for i := range page {
			answer.Overrides = append(answer.Overrides, overridepb.Message(&page[i]))
		}
		if len(page) < 2 || proto.Size(answer) <= maxAnswerBytes {
			return answer, nil
		}
		q.Limit = len(page) / 2 // the client reads the others with the next page
	}
}

// History implements adminconnect.OverrideServiceHandler.
func (o *overrides) History(ctx context.Context,
	req *adminv1.OverrideServiceHistoryRequest) (*adminv1.OverrideServiceHistoryResponse, error) {
	q, err := o.query(req)
	if err != nil {
		return nil, err
	}
	events, err := o.Source.History(ctx, q)
	if err != nil {
		return nil, overrideError(err)
	}
	answer := &adminv1.OverrideServiceHistoryResponse{}
	size := 0
	for i := range events {
		e := &events[i]
		m := &adminv1.OverrideEvent{
			Version: e.Version, At: timestamppb.New(e.At), Author: validText(e.Author), Reason: validText(e.Reason),
			Before: overridepb.Message(e.Before), After: overridepb.Message(e.After),
		}
		if size += proto.Size(m) + 8; size > maxAnswerBytes && i > 0 {
			break // the oldest are left out
		}
		answer.Events = append(answer.Events, m)
	}
	return answer, nil
}

// Status implements adminconnect.OverrideServiceHandler.
func (o *overrides) Status(context.Context,
	*adminv1.OverrideServiceStatusRequest) (*adminv1.OverrideServiceStatusResponse, error) {
	if o.Source == nil {
		return &adminv1.OverrideServiceStatusResponse{}, nil
	}
	set := o.InForce()
	answer := &adminv1.OverrideServiceStatusResponse{Source: validText(o.Name), Count: uint64(set.Len()),
		Up: o.Up == nil || o.Up()}
	if set != nil {
		answer.Version = set.Version
	}
	return answer, nil
}

// selecting is a request for some overrides.
type selecting interface {
	GetDomain() string
	GetRule() string
	GetWhere() map[string]string
	GetPageSize() uint32
}

func (o *overrides) query(req selecting) (override.Query, error) {
	const most = 1000
	switch {
	case o.Source == nil:
		return override.Query{}, errOverridesOff
	case req.GetPageSize() > most:
		return override.Query{}, invalid("page_size is %d: the most is %d", req.GetPageSize(), most)
	case len(req.GetWhere()) > override.MaxEntries:
		return override.Query{}, invalid("where: more than %d", override.MaxEntries)
	case req.GetRule() != "" && req.GetDomain() == "":
		return override.Query{}, invalid("rule needs a domain")
	}
	q := override.Query{Domain: req.GetDomain(), Rule: req.GetRule(), Where: req.GetWhere(), Limit: int(req.GetPageSize())}
	if tree := o.tree(); tree != nil && q.Rule != "" {
		q.Rule = pathOf(tree, q.Domain, q.Rule)
	}
	return q, nil
}

// pathOf returns the path of a rule that is named by its path, by its path without the domain, or by its name. A name
// without a rule is returned unchanged: overrides outlive rules.
func pathOf(tree *descriptor.Tree, domain, rule string) string {
	named := rule
	for _, r := range tree.Rules {
		switch {
		case r.Domain != domain:
		case r.Path == rule:
			return rule
		case r.Name == rule, r.Path == domain+"."+rule:
			named = r.Path
		}
	}
	return named
}
