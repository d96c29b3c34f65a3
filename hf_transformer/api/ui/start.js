// All addresses are relative to the page, so that it works behind a proxy that serves it under a path of its own.
window.ui = SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#page",
  deepLinking: true,
  // Swagger UI would send the document to a validator on the internet.
  validatorUrl: null,
});
