package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/limiter/hotkeys"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

const hotKeysHelp = "the counters with most denied and most used hits in the last minute; ?domain= &rule= &n= " +
	"&by=denied|used &format=json"

// hotKeysPage is a request for the page of hot keys.
type hotKeysPage struct {
	query        hotkeys.Query
	denied, used bool // lists to show
	json         bool
}

func readHotKeysPage(query url.Values, accept string) (hotKeysPage, error) {
	p := hotKeysPage{query: hotkeys.Query{Domain: query.Get("domain"), Rule: query.Get("rule")}}
	switch by := query.Get("by"); by {
	case "":
		p.denied, p.used = true, true
	case "denied":
		p.denied = true
	case "used":
		p.used, p.query.ByUsed = true, true
	default:
		return p, fmt.Errorf("by=%.40q: use denied or used, or leave it out for both", by)
	}
	if n := query.Get("n"); n != "" {
		limit, err := strconv.Atoi(n)
		if err != nil || limit < 1 || limit > hotkeys.MaxLimit {
			return p, fmt.Errorf("n=%.40q: use a number of keys from 1 to %d", n, hotkeys.MaxLimit)
		}
		p.query.Limit = limit
	}
	switch format := query.Get("format"); format {
	case "":
		p.json = strings.Contains(accept, "application/json")
	case "json":
		p.json = true
	case "text":
	default:
		return p, fmt.Errorf("format=%.40q: use text or json", format)
	}
	return p, nil
}

func writeHotKeys(w http.ResponseWriter, r *http.Request, opts *Options) {
	page, err := readHotKeysPage(r.URL.Query(), r.Header.Get("Accept"))
	if err != nil {
		endpoint.WriteText(w, http.StatusBadRequest, err.Error()+"\n")
		return
	}
	report := opts.HotKeys(page.query)
	page.trim(&report)
	if !page.json {
		var text bytes.Buffer
		writeHotKeysText(&text, &report)
		endpoint.WriteText(w, http.StatusOK, text.String())
		return
	}
	body, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		endpoint.WriteText(w, http.StatusInternalServerError, err.Error()+"\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(append(body, '\n'))
}

// trim keeps only the requested lists.
func (p *hotKeysPage) trim(r *hotkeys.Report) {
	r.From, r.To = r.From.UTC(), r.To.UTC()
	keep := func(requested bool, list []hotkeys.Key) []hotkeys.Key {
		if !requested {
			return nil
		}
		return append([]hotkeys.Key{}, list...) // an empty list is part of the JSON
	}
	lists := func(denied, used *[]hotkeys.Key) {
		*denied, *used = keep(p.denied, *denied), keep(p.used, *used)
	}
	lists(&r.Denied, &r.Used)
	for i := range r.Rules {
		lists(&r.Rules[i].Denied, &r.Rules[i].Used)
	}
}

func writeHotKeysText(out io.Writer, r *hotkeys.Report) {
	fmt.Fprintf(out,
		"Hits of the last %.0f s, %s to %s. Used counts all hits, denied or not. 3-5 is a number from 3 to 5.\n",
		r.To.Sub(r.From).Seconds(), r.From.Format(time.TimeOnly), r.To.Format(time.RFC3339))
	if len(r.Rules) == 0 {
		fmt.Fprintln(out, "\nNo counter was used.")
		return
	}
	if len(r.Rules) > 1 {
		writeHotKeyLists(out, "of all rules", r.Denied, r.Used, true)
	}
	for i := range r.Rules {
		rule := &r.Rules[i]
		fmt.Fprintf(out, "\n%s", hotkeys.Printable(rule.Rule))
		if !strings.HasPrefix(rule.Rule, rule.Domain) {
			fmt.Fprintf(out, " in %s", hotkeys.Printable(rule.Domain))
		}
		fmt.Fprintf(out, ": %d hits used, %d denied", rule.HitsUsed, rule.HitsDenied)
		if rule.Shadow {
			fmt.Fprintf(out, " (shadow mode: let through)")
		}
		if rule.HitsDropped > 0 {
			fmt.Fprintf(out, ", and %d that were not counted", rule.HitsDropped)
		}
		fmt.Fprintln(out)
		writeHotKeyLists(out, "of this rule", rule.Denied, rule.Used, false)
	}
}

func writeHotKeyLists(out io.Writer, of string, denied, used []hotkeys.Key, ruled bool) {
	if len(denied) > 0 {
		fmt.Fprintf(out, "\n  most denied %s\n", of)
		writeHotKeyTable(out, denied, ruled)
	}
	if len(used) > 0 {
		fmt.Fprintf(out, "\n  most used %s\n", of)
		writeHotKeyTable(out, used, ruled)
	}
}

func writeHotKeyTable(out io.Writer, keys []hotkeys.Key, ruled bool) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(denied, used, key, rule string) {
		if !ruled {
			rule = ""
		}
		fmt.Fprintf(w, "\t%s\t%s\t  %s\n", denied, used, strings.TrimRight(key+"  "+rule, " "))
	}
	row("denied", "used", "key", "(rule)")
	for i := range keys {
		k := &keys[i]
		rule := "(" + hotkeys.Printable(k.Rule)
		if k.Shadow {
			rule += ", shadow mode"
		}
		row(rangeText(k.Denied), rangeText(k.Used), k.Text, rule+")")
	}
	_ = w.Flush() // into memory
}

func rangeText(r hotkeys.Range) string {
	if r.AtLeast == r.AtMost {
		return strconv.FormatUint(r.AtLeast, 10)
	}
	return fmt.Sprintf("%d-%d", r.AtLeast, r.AtMost)
}

// HotKeys implements adminconnect.AdminServiceHandler.
func (a *admin) HotKeys(_ context.Context, req *adminv1.HotKeysRequest) (*adminv1.HotKeysResponse, error) {
	if req.GetLimit() > hotkeys.MaxLimit {
		return nil, invalid("limit is %d: the most is %d", req.GetLimit(), hotkeys.MaxLimit)
	}
	r := a.hotKeys(hotkeys.Query{Domain: req.GetDomain(), Rule: req.GetRule(), Limit: int(req.GetLimit())})
	answer := &adminv1.HotKeysResponse{
		From: timestamppb.New(r.From), To: timestamppb.New(r.To), MostDenied: hotKeyMessages(r.Denied),
		MostUsed: hotKeyMessages(r.Used),
	}
	for i := range r.Rules {
		rule := &r.Rules[i]
		answer.Rules = append(answer.Rules, &adminv1.HotRule{
			Domain:      validText(rule.Domain),
			Rule:        validText(rule.Rule),
			ShadowMode:  rule.Shadow,
			HitsUsed:    rule.HitsUsed,
			HitsDenied:  rule.HitsDenied,
			HitsDropped: rule.HitsDropped,
			MostDenied:  hotKeyMessages(rule.Denied),
			MostUsed:    hotKeyMessages(rule.Used),
		})
	}
	return answer, nil
}

func hotKeyMessages(keys []hotkeys.Key) []*adminv1.HotKey {
	messages := make([]*adminv1.HotKey, len(keys))
	for i, k := range keys {
		messages[i] = &adminv1.HotKey{
			Key:        k.Text,
			CounterKey: []byte(k.Key),
			Cut:        k.Cut,
			Domain:     validText(k.Domain),
			Rule:       validText(k.Rule),
			ShadowMode: k.Shadow,
			Used:       &adminv1.HitRange{AtLeast: k.Used.AtLeast, AtMost: k.Used.AtMost},
			Denied:     &adminv1.HitRange{AtLeast: k.Denied.AtLeast, AtMost: k.Denied.AtMost},
		}
	}
	return messages
}
