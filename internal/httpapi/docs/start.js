window.ui = SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  filter: true,
  validatorUrl: null,
  tryItOutEnabled: true,
  syntaxHighlight: { activated: false },
});
