package serviceclient

import (
	"errors"
	"strings"
	"testing"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// The plan of a move follows the order of docs/do/regions.md, and says what is wrong.
func TestPlanMove(t *testing.T) {
	replica := func(region string, epoch uint64, home string, change ...func(*adminv1.ListRegionsResponse)) RegionSaid {
		r := &adminv1.ListRegionsResponse{Region: region, Epoch: epoch, Acts: true, Homes: []*adminv1.RegionHome{{Name: home, Limits: 3}}}
		for _, name := range []string{"ap", "eu", "us"} {
			if name != region {
				r.Regions = append(r.Regions, &adminv1.Region{Name: name})
			}
		}
		for _, c := range change {
			c(r)
		}
		return RegionSaid{Region: region, Address: region + ":6070", State: r}
	}
	before := func(r *adminv1.ListRegionsResponse) { r.Before = []string{"ap", "eu", "us"} }
	waits := func(r *adminv1.ListRegionsResponse) { r.Acts, r.Reason = false, "it begins in 40s" }
	hashed := func(r *adminv1.ListRegionsResponse) { r.Homes = append(r.Homes, &adminv1.RegionHome{Limits: 2}) }
	silent := func(region string) RegionSaid {
		return RegionSaid{Region: region, Address: region + ":6070", Err: errors.New("no answer")}
	}
	for _, c := range []struct {
		name    string
		stopped bool
		all     []RegionSaid
		steps   string // the state of each
		want    string // in the text, or in the error
		wrong   string // in what is wrong; empty: nothing is
	}{
		{"nothing is done", false, []RegionSaid{replica("eu", 1, "eu"), replica("us", 1, "eu"), replica("ap", 1, "eu")}, "now later later later later", "epoch 2", ""},
		{"rules are missing in one region", false, []RegionSaid{replica("eu", 1, "us"), replica("us", 1, "us"), replica("ap", 1, "eu")}, "now later later later later", "left: ap", ""},
		{"the rules are changed", false, []RegionSaid{replica("eu", 1, "us"), replica("us", 1, "us"), replica("ap", 1, "us")}, "done now later later later", "RATELIMITD_REGIONS_BEFORE=ap,eu,us", ""},
		{"one replica of the new home", false, []RegionSaid{replica("eu", 1, "us"), replica("us", 2, "us", before, waits), replica("us", 1, "us")}, "done now later later later", "=2", ""},
		{"the new home", false, []RegionSaid{replica("eu", 1, "us"), replica("us", 2, "us", before, waits), replica("ap", 1, "us")}, "done done now now later", "wait until us counts: it begins in 40s", ""},
		{"all have the settings", false, []RegionSaid{replica("eu", 2, "us"), replica("us", 2, "us", before, waits), replica("ap", 2, "us")}, "done done done now later", "counts: it begins", ""},
		{"it has moved", false, []RegionSaid{replica("eu", 2, "us"), replica("us", 2, "us", before), replica("ap", 2, "us")}, "done done done done now", "unset", ""},
		{"the old home is not asked", false, []RegionSaid{replica("us", 2, "us", before), replica("ap", 2, "us")}, "done done now done later", "left: eu", ""},
		{"the old home is stopped", true, []RegionSaid{silent("eu"), replica("us", 1, "us"), replica("ap", 1, "us")}, "done now later later later", "OLD_HOME_STOPPED=true", ""},
		{"a region does not answer", false, []RegionSaid{replica("us", 1, "us"), silent("ap")}, "done now later later later", "", "ap:6070, of region ap, does not answer: no answer"},
		{"a list before is missing", false, []RegionSaid{replica("eu", 1, "us"), replica("us", 2, "us"), replica("ap", 1, "us")}, "done now later later later", "=3", "no RATELIMITD_REGIONS_BEFORE"},
		{"the epoch before the rules", false, []RegionSaid{replica("eu", 2, "eu"), replica("us", 2, "eu", before), replica("ap", 1, "eu")}, "now done now done later", "", "eu has epoch 2, and rules that name eu"},
		{"homes by hash", false, []RegionSaid{replica("eu", 1, "eu", hashed), replica("us", 1, "eu", hashed)}, "now later later later later", "", "limits with a home that a hash chooses: 2"},
		{"the new home does not answer", false, []RegionSaid{silent("us"), replica("eu", 1, "eu")}, "", "us:6070, of the new home us: no answer", ""},
		{"another region answers", false, []RegionSaid{replica("us", 1, "eu"), {Region: "eu", Address: "eu:6070", State: &adminv1.ListRegionsResponse{Region: "ap"}}}, "", `eu:6070 is in region "ap", not in eu`, ""},
		{"an unknown home", false, []RegionSaid{{Region: "us", State: &adminv1.ListRegionsResponse{Region: "us", Epoch: 1}}}, "", "no replica knows a region eu: they know us", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := PlanMove("eu", "us", c.stopped, c.all)
			if err != nil || c.steps == "" {
				if err == nil || !strings.Contains(err.Error(), c.want) || c.steps != "" {
					t.Errorf("the error is %v, want one with %q", err, c.want)
				}
				return
			}
			var states []string
			for _, s := range p.Steps {
				states = append(states, s.State)
			}
			var text strings.Builder
			if err := p.Write(&text); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(states, " "); got != c.steps || !strings.Contains(text.String(), c.want) {
				t.Errorf("the steps are %s, want %s, with %q:\n%s", got, c.steps, c.want, &text)
			}
			if wrong := strings.Join(p.Wrong, "\n"); (c.wrong == "") != (wrong == "") || !strings.Contains(wrong, c.wrong) || !strings.Contains(text.String(), c.wrong) {
				t.Errorf("wrong: %q, want %q", wrong, c.wrong)
			}
		})
	}
}
