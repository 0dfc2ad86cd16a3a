package operator

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/backend/regions"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/terminal"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// ListRegions implements adminconnect.AdminServiceHandler.
func (a *admin) ListRegions(context.Context, *adminv1.ListRegionsRequest) (*adminv1.ListRegionsResponse, error) {
	return regionsMessage(a.regions), nil
}

// regionsMessage is what the process knows. status is nil if no region is set.
func regionsMessage(status func() regions.Status) *adminv1.ListRegionsResponse {
	if status == nil {
		return &adminv1.ListRegionsResponse{}
	}
	st := status()
	m := &adminv1.ListRegionsResponse{Region: st.Region, Epoch: st.Epoch, Acts: st.Acts, Cold: uint64(st.Cold), Starved: uint64(st.Starved)}
	if st.Acts {
		m.ActsFor = durationpb.New(st.For)
	}
	for i := range st.Peers {
		p := &st.Peers[i]
		r := &adminv1.Region{Name: p.Region, Answered: timestampOf(p.Heard), Asked: timestampOf(p.Asked), Consented: timestampOf(p.Consented), Epoch: p.Epoch}
		if p.Err != nil {
			r.Error = validText(p.Err.Error())
		}
		m.Regions = append(m.Regions, r)
	}
	return m
}

// writeRegions writes the page /regions, in the words of `ratelimitd regions`.
func writeRegions(w http.ResponseWriter, opts *Options) {
	var b bytes.Buffer
	_ = WriteRegions(&b, regionsMessage(opts.Regions), time.Now()) // into memory
	endpoint.WriteText(w, http.StatusOK, b.String())
}

// WriteRegions writes what a process knows about the other regions, for people. Times are written as they are from now.
func WriteRegions(to io.Writer, r *adminv1.ListRegionsResponse, now time.Time) error {
	var b strings.Builder
	if r.GetRegion() == "" {
		_, err := io.WriteString(to, "no region is set: RATELIMITD_REGION\n")
		return err
	}
	fmt.Fprintf(&b, "region %s, epoch %d\n", terminal.Clean(r.GetRegion()), r.GetEpoch())
	if r.GetActs() {
		fmt.Fprintf(&b, "it counts for the others; without their consent it stops in %s\n", r.GetActsFor().AsDuration().Round(time.Second))
	} else {
		b.WriteString("it does not count for the others: too few of them have consented, or it became a home a short time ago\n")
	}
	fmt.Fprintf(&b, "attempts that waited for a home: %d; without an answer: %d\n", r.GetCold(), r.GetStarved())
	ago := func(at *timestamppb.Timestamp) string {
		if at == nil {
			return "never"
		}
		return max(now.Sub(at.AsTime()), 0).Round(time.Second).String() + " ago"
	}
	for _, p := range r.GetRegions() {
		fmt.Fprintf(&b, "%s: answered %s, asked %s, consented %s", terminal.Clean(p.GetName()), ago(p.GetAnswered()), ago(p.GetAsked()), ago(p.GetConsented()))
		if p.GetEpoch() > 0 && p.GetEpoch() != r.GetEpoch() {
			fmt.Fprintf(&b, ", has epoch %d", p.GetEpoch())
		}
		if p.GetError() != "" {
			fmt.Fprintf(&b, ", last error: %s", terminal.Clean(p.GetError()))
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(to, b.String())
	return err
}
