package routers

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/middleware/httplimit"
)

// forGin returns gin's kind of middleware. With Options.Actual, read the handler's status and size from a value in the
// request's context: the status and the size that Actual gets are not the handler's.
func forGin(limit func(http.Handler) http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		passed := false
		c.Request.Pattern = c.FullPath()
		limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			passed, c.Request = true, r
			c.Next()
		})).ServeHTTP(c.Writer, c.Request)
		if !passed {
			c.Abort()
		}
	}
}

// Gin limits each route.
func Gin(limiter limits.Decider) http.Handler {
	e := gin.New()
	e.Use(forGin(httplimit.New(limiter, httplimit.Options{
		Domain: "api", Descriptors: []httplimit.Descriptor{{httplimit.Pattern("route").Or("none")}},
	})))

	e.GET("/users/:id", func(c *gin.Context) { c.String(http.StatusOK, "user %s\n", c.Param("id")) })
	shop := e.Group("/shop")
	shop.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "shop\n") })
	shop.POST("/items/:id", func(c *gin.Context) { c.String(http.StatusOK, "item %s\n", c.Param("id")) })
	return e
}
