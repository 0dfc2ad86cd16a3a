package routers

import (
	"cmp"
	"fmt"
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/middleware/httplimit"
)

// Chi limits each route. Middleware of Use runs before chi has found the route, so httplimit.Pattern would find none.
// The key looks up the route instead. It finds routes of mounted routers, too.
func Chi(limiter limits.Decider) http.Handler {
	r := chi.NewRouter()
	route := httplimit.Func("route", func(q *http.Request) (string, bool) {
		return r.Find(chi.NewRouteContext(), q.Method, cmp.Or(q.URL.RawPath, q.URL.Path)), true
	})
	r.Use(httplimit.New(limiter, httplimit.Options{Domain: "api",
		Descriptors: []httplimit.Descriptor{{route.Or("none")}}}))

	r.Get("/users/{id}", func(w http.ResponseWriter, q *http.Request) { fmt.Fprintln(w, "user", chi.URLParam(q, "id")) })
	r.Route("/shop", func(r chi.Router) {
		r.Get("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "shop") })
		r.Post("/items/{id}", func(w http.ResponseWriter, q *http.Request) { fmt.Fprintln(w, "item", chi.URLParam(q, "id")) })
	})
	return r
}
