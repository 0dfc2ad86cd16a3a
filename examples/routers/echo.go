package routers

import (
	"net/http"

	"github.com/labstack/echo/v5"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/middleware/httplimit"
)

// Echo limits each route.
func Echo(limiter limits.Decider) http.Handler {
	e := echo.New()
	e.Use(echo.WrapMiddleware(httplimit.New(limiter, httplimit.Options{
		Domain: "api", Descriptors: []httplimit.Descriptor{{httplimit.Pattern("route").Or("none")}},
	})))

	e.GET("/users/:id", func(c *echo.Context) error { return c.String(http.StatusOK, "user "+c.Param("id")+"\n") })
	shop := e.Group("/shop")
	shop.GET("/", func(c *echo.Context) error { return c.String(http.StatusOK, "shop\n") })
	shop.POST("/items/:id", func(c *echo.Context) error { return c.String(http.StatusOK, "item "+c.Param("id")+"\n") })
	return e
}
