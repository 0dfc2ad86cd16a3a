package config

import (
	"slices"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Bounds of reservations. A reservation takes memory in the store until it ends.
const (
	minTTL         = time.Millisecond
	maxTTL         = 24 * time.Hour
	maxOutstanding = 1_000_000
)

// durationType is a duration as Go writes it, without a sign or a fraction.
var durationType = yamlform.Type{Kind: yamlform.Text, Pattern: "([0-9]+(ms|s|m|h))+",
	Form: "a duration such as 30s or 5m"}

// reservationReading is the `reservations` of a descriptor while its map is being read.
type reservationReading struct {
	reservations *descriptor.Reservations // nil without reservations
	given        yamlform.Value           // `reservations`
	ttl, maxTTL  yamlform.Value
}

// reservationsForm is the map of `reservations`.
var reservationsForm = yamlform.NewForm("reservations", "`reservations`", []yamlform.Field[reservationReading]{
	{Key: yamlform.Key{Name: "ttl", Type: durationType, Extension: true,
		Default: "1m", Doc: "how long a reservation lasts if the client does not say"},
		Read: func(r *reservationReading, v yamlform.Value) {
			r.ttl = v
			readTTL(&r.reservations.TTL, v)
		}},
	{Key: yamlform.Key{Name: "max_ttl", Type: durationType, Extension: true,
		Default: "10m, or `ttl` if longer", Doc: "the longest that a client may ask for, up to 24h"},
		Read: func(r *reservationReading, v yamlform.Value) {
			r.maxTTL = v
			readTTL(&r.reservations.MaxTTL, v)
		}},
	{Key: yamlform.Key{Name: "max_share", Type: yamlform.Type{Kind: yamlform.Decimal, Most: 1}, Extension: true,
		Default: "1", Doc: "the largest reservation, as a fraction of the limit"},
		Read: func(r *reservationReading, v yamlform.Value) {
			if share, ok := v.Millionths(); ok {
				r.reservations.MaxShare = uint32(share)
			}
		}},
	{Key: yamlform.Key{Name: "max_outstanding", Type: yamlform.Between(1, maxOutstanding), Extension: true,
		Default: "10000", Doc: "the most open reservations of one counter"},
		Read: func(r *reservationReading, v yamlform.Value) {
			if n, ok := v.Number(); ok {
				r.reservations.MaxOutstanding = int(n)
			}
		}},
	{Key: yamlform.Key{Name: "on_expire", Type: yamlform.OneOf("charge", "release"), Extension: true,
		Default: "`charge`",
		Doc:     "without a commit, the reservation counts as used (`charge`), or its unused hits are returned (`release`)"},
		Read: func(r *reservationReading, v yamlform.Value) {
			i, _ := v.Choice()
			r.reservations.Release = i == 1
		}},
}...)

// readTTL reads for how long something is held.
func readTTL(into *time.Duration, v yamlform.Value) {
	text, ok := v.Text()
	if !ok {
		return
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < minTTL || d > maxTTL || strings.Trim(text, "0123456789hms") != "" {
		v.Errorf("`%s` must be a duration from 1ms to 24h, such as 30s or 5m, not %s", v.Key(), yamlform.Quote(text))
		return
	}
	*into = d
}

// readReservations reads true, false, or the bounds.
func (d *descriptorReading) readReservations(v yamlform.Value) {
	r := &d.reserve
	if !v.IsMap() && !v.Flag() {
		if d.r.unreserved == nil {
			d.r.unreserved = make(map[descriptor.Position]bool)
		}
		d.r.unreserved[d.spec.Position] = true
		return
	}
	bounds := descriptor.DefaultReservations()
	r.given, r.reservations = v, &bounds
	if !v.IsMap() {
		return
	}
	yamlform.Read(v, reservationsForm, r)
	switch {
	case bounds.TTL <= bounds.MaxTTL:
	case !r.maxTTL.Given():
		bounds.MaxTTL = bounds.TTL
	case !r.ttl.Given():
		bounds.TTL = bounds.MaxTTL
	default:
		r.ttl.Errorf("`ttl` is %v and `max_ttl` is %v: a `ttl` is at most as long as `max_ttl`", bounds.TTL, bounds.MaxTTL)
	}
}

// checkReservations rejects `reservations` where nothing can be held.
func (d *descriptorReading) checkReservations() {
	r := &d.reserve
	for i := range d.spec.Children {
		if !r.given.Given() && (d.rule == nil || !d.rule.Reservable()) {
			break
		}
		if key := d.spec.Children[i].Key; descriptor.ReservationEntry(key) {
			d.r.ErrorAt(yamlform.Position(d.spec.Children[i].Position),
				"the key `%s` below a descriptor with `reservations`: there it names a reservation and is not matched; use "+
					"another key",
				key)
		}
	}
	if d.rule == nil || !r.given.Given() {
		return
	}
	if d.rule.Unlimited {
		r.given.Errorf("`reservations` and `unlimited: true` cannot be combined: nothing is counted; leave it out")
	}
	for i := range d.rule.Limits {
		if why := notReservable(&d.rule.Limits[i]); why != "" {
			r.given.Errorf("`reservations` and %s", why)
		}
	}
}

// notReservable returns why hits cannot be reserved under a limit, or nothing if they can.
func notReservable(l *descriptor.Limit) string {
	switch {
	case l.Algorithm == descriptor.LeakyBucket:
		return "`algorithm: leaky_bucket` cannot be combined: its requests wait in a queue, where no place can be " +
			"reserved; use `token_bucket`"
	case l.Scheduled:
		return "`active` cannot be combined: a reservation may end when its limit no longer applies; leave out one of them"
	case l.Penalty != nil:
		return "`penalty` cannot be combined: a reservation that does not fit is not abuse; remove one of them"
	case l.Algorithm == descriptor.SharedWindow:
		return "`classes` cannot be combined: a reservation that ends would return hits of another class; write this " +
			"limit in its own descriptor"
	case l.Lease:
		return "`lease: true` cannot be combined: all replicas must see a reservation immediately; leave out `lease`"
	case l.CountDenied == descriptor.DeniedCount:
		return "`count_denied: true` cannot be combined: a denied reservation would count as used; leave out `count_denied`"
	default:
		return ""
	}
}

// canReserve reports whether hits can be reserved under all limits of a rule.
func canReserve(rule *descriptor.Rule) bool {
	return len(rule.Limits) > 0 && !slices.ContainsFunc(rule.Limits,
		func(l descriptor.Limit) bool { return notReservable(&l) != "" })
}

// applyTo gives the reservations to all limits of a rule.
func (r *reservationReading) applyTo(rule *descriptor.Rule, amounts descriptor.Cost) {
	if r.reservations == nil {
		return
	}
	r.reservations.Cost = amounts
	reserve(rule, r.reservations)
}

// reserve gives reservations to all limits of a rule. Denied hits do not count there: otherwise a customer would pay
// for a reservation that it did not get.
func reserve(rule *descriptor.Rule, reservations *descriptor.Reservations) {
	for i := range rule.Limits {
		l := &rule.Limits[i]
		l.Reservations = reservations
		if l.Has(descriptor.SettingCountDenied) {
			l.CountDenied = descriptor.DeniedDrop
		}
	}
}
