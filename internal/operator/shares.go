package operator

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota/assigner"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Shares lists the parts of quota buckets' limits that the clients of this replica hold.
type Shares interface {
	// Shares returns the n buckets of a domain with most demand whose ids have all entries of where, how many such buckets
	// there are, and how many the domain has.
	Shares(now time.Time, domain string, where []descriptor.Entry, n int) (all []assigner.BucketShares, matching,
		total int)

	// Buckets returns how many buckets are kept for clients, in all domains.
	Buckets() int
}

// maxHeld is how many clients of a bucket are listed.
const maxHeld = 1000

// ListShares implements adminconnect.AdminServiceHandler.
func (a *admin) ListShares(_ context.Context, req *adminv1.ListSharesRequest) (*adminv1.ListSharesResponse, error) {
	switch {
	case req.GetDomain() == "":
		return nil, invalid("domain must not be empty")
	case req.GetLimit() > maxPage:
		return nil, invalid("limit is %d: the most is %d", req.GetLimit(), maxPage)
	}
	where, err := a.bounds.entries(req)
	if err != nil {
		return nil, err
	}
	answer := &adminv1.ListSharesResponse{Host: validText(a.host)}
	if tree := a.rules.tree(); tree != nil {
		answer.DomainKnown = tree.Domain(req.GetDomain()) != nil
	}
	if a.shares == nil {
		return answer, nil
	}
	limit := int(cmp.Or(req.GetLimit(), defaultPage))
	all, matching, total := a.shares.Shares(time.Now(), req.GetDomain(), where, limit)
	answer.Total, answer.More = count(total), matching > len(all)
	size := 0
	for i := range all {
		m := sharesMessage(&all[i])
		if size += proto.Size(m) + 8; size > maxAnswerBytes && len(answer.GetBuckets()) > 0 {
			answer.More = true
			break
		}
		answer.Buckets = append(answer.Buckets, m)
	}
	return answer, nil
}

func sharesMessage(b *assigner.BucketShares) *adminv1.BucketShares {
	m := &adminv1.BucketShares{Rule: validText(b.Rule), Limit: validText(b.Limit), Replicas: count(b.Replicas),
		Clients: count(len(b.Held))}
	for _, e := range b.Entries {
		m.Entries = append(m.Entries, &adminv1.Entry{Key: validText(e.Key), Value: validText(e.Value)})
	}
	held := &adminv1.TokenRate{}
	for i := range b.Held {
		h := &b.Held[i]
		m.Demand += h.Demand
		if h.Assignment.Kind == quota.Tokens {
			held.PerSecond += h.Assignment.Rate()
			held.Burst += float64(h.Assignment.MaxTokens)
		}
		if i < maxHeld {
			m.Held = append(m.Held, heldMessage(h))
		}
	}
	if b.Rate != (quota.Rate{}) {
		m.LimitRate = &adminv1.TokenRate{PerSecond: b.Rate.PerSecond, Burst: b.Rate.Burst}
		m.ReplicaRate = &adminv1.TokenRate{PerSecond: b.ReplicaRate, Burst: b.ReplicaBurst}
		m.HeldRate = held
	}
	return m
}

var assignmentKinds = map[quota.Kind]adminv1.AssignmentKind{
	quota.AllowAll: adminv1.AssignmentKind_ASSIGNMENT_KIND_ALLOW_ALL,
	quota.DenyAll:  adminv1.AssignmentKind_ASSIGNMENT_KIND_DENY_ALL,
	quota.Tokens:   adminv1.AssignmentKind_ASSIGNMENT_KIND_TOKENS,
}

func heldMessage(h *assigner.HeldShare) *adminv1.HeldShare {
	m := &adminv1.HeldShare{Client: validText(h.Client), Since: timestampOf(h.Since), Demand: h.Demand,
		Kind: assignmentKinds[h.Assignment.Kind]}
	if h.Assignment.Kind == quota.Tokens {
		m.Rate = &adminv1.TokenRate{PerSecond: h.Assignment.Rate(), Burst: float64(h.Assignment.MaxTokens)}
	}
	if h.Assignment.Kind != quota.None {
		m.Expires = timestampOf(h.Expires)
	}
	return m
}
