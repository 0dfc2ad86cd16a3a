package simkit

// Network carries messages between places. The chances are of one message.
type Network struct {
	World *World

	Least, Most int64 // time that a message takes
	Late        float64
	Latest      int64   // a late message takes up to that long
	Lost        float64 // it never arrives
	Repeated    float64 // it arrives a second time, up to Latest later

	cuts map[[2]string]int64

	Sent int // messages
}

// Cut loses all messages from one place to another until a time. Messages that are on their way arrive.
func (n *Network) Cut(from, to string, until int64) {
	if n.cuts == nil {
		n.cuts = make(map[[2]string]int64)
	}
	n.cuts[[2]string{from, to}] = until
}

// Heal ends all cuts.
func (n *Network) Heal() { n.cuts = nil }

// Send carries a message, which arrives by a call of deliver: never, once or twice. deliver must not change the data of
// another delivery.
func (n *Network) Send(from, to string, deliver func()) {
	n.Sent++
	w := n.World
	lost, repeated := w.Chance(n.Lost), w.Chance(n.Repeated)
	d := w.Between(n.Least, n.Most)
	if w.Chance(n.Late) {
		d = w.Between(n.Most, n.Latest)
	}
	if lost || w.Now() < n.cuts[[2]string{from, to}] {
		return
	}
	w.After(d, deliver)
	if repeated {
		w.After(w.Between(d, d+n.Latest), deliver)
	}
}
